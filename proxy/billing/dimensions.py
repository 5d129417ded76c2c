"""The dimensions of a request: who used it (`end_user`), in which `session` and `run`, and with which tags. Pure.

Invariants: a request has each dimension at most once, and at most `TAGS_MAX` tags. Records, entries, queues and
archives contain value ids, never values: only the table of values maps an id to what the client sent, so that a
person's id can be erased.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

END_USER, SESSION, RUN = "end_user", "session", "run"
TAG = "tag:"
"""the dimension of a tag is `tag:` and its name"""
RUN_CAP = "run;max"
"""sent with the dimensions of a request: the cap of its run, in USD, as the client sets it"""
NAMED = (END_USER, SESSION, RUN)
"""the dimensions that are not tags"""

OVERFLOW = "overflow"
"""the value id of a value that got none of its own: too many new values, or the ledger could not be asked"""

PRESETS = (
    "tokenweir", "claude_code", "codex", "opencode", "amp", "litellm", "helicone", "portkey", "anthropic", "openai",
    "gemini", "bedrock", "baggage",
)  # fmt: skip
"""names of the sets of places where clients name dimensions; of two that name one dimension, the first counts"""

TAGS_MAX = 8
VALUE_CHARS_MAX = 256

Dimensions: TypeAlias = Mapping[str, str]
"""dimension → value id"""
NO_DIMENSIONS: Dimensions = {}
SentDimensions: TypeAlias = Mapping[str, str]
"""dimension → value, as `value_of` returns it"""

_TAG_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,31}")


def tag(name: str) -> str | None:
    """The dimension of a tag, as `tag:team`; None: that is no name of a tag. Upper case is the same as lower case."""
    name = name.strip().lower()
    return TAG + name if _TAG_NAME.fullmatch(name) else None


def dimension(text: str) -> str | None:
    """The dimension that an operator names: `end_user`, `session`, `run` or `tag:team`; None: there is none of that
    name."""
    text = text.strip().lower()
    if text in NAMED:
        return text
    return tag(text.removeprefix(TAG)) if text.startswith(TAG) else None


def value_of(text: str) -> str | None:
    """A value as it is stored: without blanks around it, and its SHA-256 instead if it is longer than
    `VALUE_CHARS_MAX`. None: it is empty, or has characters that cannot be printed."""
    text = text.strip()
    if not text or not text.isprintable():
        return None
    if len(text) <= VALUE_CHARS_MAX:
        return text
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def hashed(value: str, pepper: bytes) -> str:
    """The stored form of an end user's value with the setting `dimensions.hash_end_users`. `pepper`: that of the
    keys."""
    return f"hmac:{hmac.digest(pepper, b'end_user:' + value.encode(), 'sha256').hex()}"


@dataclass(frozen=True, slots=True)
class KeyDimensions:
    """The dimensions of the requests of one key."""

    sources: tuple[str, ...] | None = None
    """the presets that count; None: those of the deployment"""
    fixed: SentDimensions = field(default_factory=dict)
    """values that every request has, whatever its client sends"""

    def stored(self) -> dict[str, Any]:
        """The stored form: JSON."""
        return {"sources": None if self.sources is None else list(self.sources), "fixed": dict(self.fixed)}

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> KeyDimensions:
        """Read the stored form."""
        sources = stored["sources"]
        return cls(None if sources is None else tuple(sources), stored["fixed"])

    def checked(self) -> KeyDimensions | None:
        """The dimensions as they are stored; None: those of the deployment. Raises ValueError that names the
        invalid field."""
        if self == KeyDimensions():
            return None
        for preset in self.sources or ():
            if preset not in PRESETS:
                raise ValueError(f"dimension_sources: must be some of {', '.join(PRESETS)}, not {preset!r}")
        fixed: dict[str, str] = {}
        for text, sent in self.fixed.items():
            name, value = dimension(text), value_of(sent)
            if name is None:
                raise ValueError(f"dimensions: the names must be end_user, session, run or tag:NAME, not {text!r}")
            if value is None:
                raise ValueError(f"dimensions: {name} must have 1 to {VALUE_CHARS_MAX} printable characters")
            fixed[name] = value
        if len(within_limits(fixed.items())) < len(fixed):
            raise ValueError(f"dimensions: must have at most {TAGS_MAX} tags")
        sources = self.sources
        return KeyDimensions(None if sources is None else tuple(one for one in PRESETS if one in sources), fixed)


def within_limits(values: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Keeps the first pair of each dimension, and the first `TAGS_MAX` tags."""
    kept: dict[str, str] = {}
    tags = 0
    for name, value in values:
        is_tag = name.startswith(TAG)
        if name in kept or (is_tag and tags >= TAGS_MAX):
            continue
        kept[name] = value
        tags += is_tag
    return kept
