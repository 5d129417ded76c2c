"""Narrowed keys: the holder of a key makes a key that may do less, without the proxy. Pure.

A narrowable key is `tw-ID.SIGNATURE`, with the id of the key. A narrowed one is `tw-ID.CAVEAT.….SIGNATURE`: each caveat
is a text `name=value`, and adds a condition. Caveats and signature are base64url without padding. The signature after a
caveat is the HMAC-SHA256 of the caveat's text, keyed with the 32 bytes of the signature before it; the first one is
`root_key`.

Invariants: the holder of a narrowed key can add caveats, but not remove or change one, which needs an earlier
signature. Each caveat only takes something away, whatever caveats are before it. An unknown or invalid caveat, and two
that contradict each other, make the key invalid. All keys that are made from a key with a cap share the cap, so that
further narrowing does not raise it; so only caveats before the cap give another cap. Neither the proxy nor its ledger
stores a signature.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from proxy.billing.dimensions import NAMED, KeyDimensions, value_of
from proxy.billing.keys import ApiKey, KeyCap
from proxy.billing.limit_rules import CAP_ID, CAPS
from proxy.billing.limits import BUDGET_NUSD_MAX
from proxy.billing.money import Nusd, nusd_from_usd
from proxy.foundation.times import iso_time

CAVEATS_MAX = 16
CAVEAT_BYTES_MAX = 1_024
NARROWED_CHARS_MAX = 4_096
NAME_CHARS_MAX = 128

_FORM = re.compile(r"tw-([A-Za-z0-9_-]{1,64})((?:\.[A-Za-z0-9_-]+)*)\.([A-Za-z0-9_-]{43})", re.ASCII)
_PERSON = b"tw narrowing"
_NARROWED_ID = "n_"


class InvalidCaveatError(ValueError):
    """A caveat that this version does not know, or with an invalid value; or two that contradict each other."""


@dataclass(frozen=True, slots=True)
class PresentedKey:
    """A narrowable or narrowed key; nothing of it is verified."""

    key_id: str
    caveats: tuple[bytes, ...]
    signature: bytes = field(repr=False)

    def text(self) -> str:
        """The key as a client sends it. Raises ValueError if it has become too long."""
        parts = ".".join((f"tw-{self.key_id}", *map(_encoded, (*self.caveats, self.signature))))
        if len(self.caveats) > CAVEATS_MAX:
            raise ValueError(f"a key may have at most {CAVEATS_MAX} caveats")
        if len(parts) > NARROWED_CHARS_MAX:
            raise ValueError(f"a key may have at most {NARROWED_CHARS_MAX} characters")
        return parts

    def narrowed(self, caveats: Iterable[str]) -> PresentedKey:
        """The key with further caveats. Raises InvalidCaveatError."""
        added = [one.encode() for one in caveats]
        _meaning((*self.caveats, *added))
        *_, signature = signatures(self.signature, added)
        return PresentedKey(self.key_id, (*self.caveats, *added), signature)


def root_key(digest: bytes, pepper: bytes) -> bytes:
    """The first signature of a key's chain; 32 bytes. `digest`: of the key's secret, as it is stored. Without the
    pepper, the content of a stolen database gives no signature."""
    return hashlib.blake2b(digest, key=pepper, digest_size=32, person=_PERSON).digest()


def narrowable(key_id: str, digest: bytes, pepper: bytes) -> str:
    """The narrowable key of this id, which the proxy accepts as the key itself."""
    return PresentedKey(key_id, (), root_key(digest, pepper)).text()


def narrowed_text(key: str, caveats: Iterable[str]) -> str:
    """The narrowable or narrowed key `key` with further caveats. Raises ValueError, without a part of the key."""
    parts = parse(key)
    if parts is None:
        raise ValueError(
            "the key is not narrowable: `tokenweir keys create --narrowable`, or `rotate --narrowable`, prints one"
        )
    return parts.narrowed(caveats).text()


def parse(presented: str) -> PresentedKey | None:
    """The parts of a narrowable or narrowed key; None: it has another form. Cheap."""
    found = _FORM.fullmatch(presented) if len(presented) <= NARROWED_CHARS_MAX else None
    if found is None:
        return None
    caveats = tuple(map(_decoded, found[2].split(".")[1:]))
    signature = _decoded(found[3])
    if len(caveats) > CAVEATS_MAX or signature is None or None in caveats:
        return None
    return PresentedKey(found[1], tuple(one for one in caveats if one is not None), signature)


def signatures(first: bytes, caveats: Iterable[bytes]) -> list[bytes]:
    """The signatures of a chain: `first`, and one after each caveat."""
    chain = [first]
    for caveat in caveats:
        chain.append(hmac.digest(chain[-1], caveat, "sha256"))
    return chain


def verified(presented: PresentedKey, root: bytes) -> list[bytes] | None:
    """The signatures of the key's chain; None: the chain does not begin with `root`."""
    chain = signatures(root, presented.caveats)
    return chain if hmac.compare_digest(chain[-1], presented.signature) else None


def narrowed_key(parent: ApiKey, caveats: Sequence[bytes], chain: Sequence[bytes], until: float | None) -> ApiKey:
    """What a key with these caveats may do. `chain`: its verified signatures. `until`: the end of the validity of the
    parent's secret, in Unix seconds; None: that of the parent. Raises InvalidCaveatError."""
    meaning = _meaning(caveats)
    caps = tuple(KeyCap(_id(CAP_ID, chain[at + 1]), nusd) for at, nusd in meaning.caps)
    ends = [one for one in (parent.expires_at, until, meaning.expires_at) if one is not None]
    return replace(
        parent,
        models=_both(parent.models, meaning.models),
        expires_at=min(ends, default=None),
        dimensions=_fixed(parent.dimensions, meaning.fixed),
        caps=caps,
        uses_stored=parent.uses_stored and meaning.uses_stored,
        holder=_id(_NARROWED_ID, chain[-1]) if caveats else None,
        branch_ids=tuple(_id(_NARROWED_ID, chain[at + 1]) for at in meaning.branches),
    )


@dataclass(slots=True)
class _Meaning:
    """What some caveats allow."""

    models: frozenset[str] | None = None
    """None: all"""
    expires_at: float | None = None
    fixed: dict[str, str] = field(default_factory=dict)
    """dimensions of all requests"""
    caps: list[tuple[int, Nusd]] = field(default_factory=list)
    """index of the caveat, and the most that may be spent"""
    branches: list[int] = field(default_factory=list)
    """indices of the first caveat, and of names"""
    uses_stored: bool = True
    """see `ApiKey.uses_stored`"""


def _meaning(caveats: Sequence[bytes]) -> _Meaning:
    """Raises InvalidCaveatError."""
    found = _Meaning()
    for at, caveat in enumerate(caveats):
        text = _text(caveat)
        name, separator, value = text.partition("=")
        if at == 0 or name == "name":
            found.branches.append(at)
        if name == "models":
            found.models = _both(found.models, _models(value))
        elif name == "expires":
            expires_at = _expires(value)
            found.expires_at = expires_at if found.expires_at is None else min(found.expires_at, expires_at)
        elif name == "usd":
            found.caps.append((at, _usd(value)))
        elif name in NAMED:
            _fix(found.fixed, name, value)
        elif text == "stored=none":
            found.uses_stored = False
        elif name != "name" or not separator or not 1 <= len(value) <= NAME_CHARS_MAX or not value.isprintable():
            raise InvalidCaveatError(
                f"caveat {at + 1}: must be models, expires, usd, {', '.join(NAMED)}, stored=none or name"
            )
    if len(found.caps) > len(CAPS):
        raise InvalidCaveatError(f"usd: a key may have at most {len(CAPS)} caps")
    return found


def _text(caveat: bytes) -> str:
    if len(caveat) > CAVEAT_BYTES_MAX:
        raise InvalidCaveatError(f"a caveat may have at most {CAVEAT_BYTES_MAX} bytes")
    try:
        return caveat.decode()
    except UnicodeDecodeError:
        raise InvalidCaveatError("a caveat must be UTF-8") from None


def _models(value: str) -> frozenset[str]:
    models = frozenset(one.strip() for one in value.split(","))
    if "" in models:
        raise InvalidCaveatError("models: must be names, separated by commas")
    return models


def _expires(value: str) -> float:
    moment = iso_time(value)
    if moment is None:
        raise InvalidCaveatError("expires: must be a time, such as 2026-12-01T12:00:00Z")
    return moment


def _usd(value: str) -> Nusd:
    try:
        nusd = nusd_from_usd(value)
    except ValueError:
        nusd = Nusd(-1)
    if not 0 <= nusd <= BUDGET_NUSD_MAX:
        raise InvalidCaveatError("usd: must be an amount in USD, such as 2.50")
    return nusd


def _fix(fixed: dict[str, str], name: str, sent: str) -> None:
    value = value_of(sent)
    if value is None:
        raise InvalidCaveatError(f"{name}: must be printable, and not empty")
    if fixed.setdefault(name, value) != value:
        raise InvalidCaveatError(f"{name}: has two values")


def _both(first: frozenset[str] | None, second: frozenset[str] | None) -> frozenset[str] | None:
    if first is None or second is None:
        return second if first is None else first
    return first & second


def _fixed(of_key: KeyDimensions | None, added: dict[str, str]) -> KeyDimensions | None:
    if not added:
        return of_key
    before = of_key or KeyDimensions()
    fixed = dict(before.fixed)
    for name, value in added.items():
        _fix(fixed, name, value)
    return replace(before, fixed=fixed)


def _id(prefix: str, signature: bytes) -> str:
    """The id of a cap or of a narrowed key; it does not reveal the signature."""
    return f"{prefix}{hashlib.sha256(b'tokenweir cap' + signature).hexdigest()[:32]}"


def _encoded(part: bytes) -> str:
    return urlsafe_b64encode(part).decode("ascii").rstrip("=")


def _decoded(text: str) -> bytes | None:
    try:
        part = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return None
    return part if _encoded(part) == text else None
