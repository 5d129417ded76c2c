"""Clients without a key: each sends a token (JWT) of a configured issuer, and uses the key of its identity and project.

Invariants:
- Nothing of a token counts before its signature is verified; until then it selects the configured issuer, no more.
- A request waits for the issuer only if its token names a key of the issuer that is not in memory (`FollowedKeys`).
- A verification takes half a millisecond of the event loop. Tokens without a valid signature count as guesses, and an
  address with too many of them causes no further one. A token that its issuer has signed is remembered by its digest:
  an accepted one until it expires, at most VERIFIED_S; a refused one for REFUSED_S.
- A person's repeated requests get no stored answer of another person, and a person leaves new values of dimensions to
  others, though all people of an identity have one key in a project.
- A reload that removes an identity, or changes it, ends the acceptance of its tokens at once.
- Neither a token nor a claim is in a message.
"""

from __future__ import annotations

import asyncio
import binascii
import hashlib
from base64 import urlsafe_b64decode
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

import msgspec

from proxy.billing.dimensions import END_USER, KeyDimensions, SentDimensions, value_of, within_limits
from proxy.billing.keys import Account, ApiKey, IdentityKey
from proxy.foundation.outage import Outage, OutageLog
from proxy.foundation.tasks import Tasks
from proxy.identity.claims import claim_values
from proxy.identity.discovery import IssuerDocument, discover
from proxy.identity.documents import DocumentClient, IdentityProviderError, document_client
from proxy.identity.keys import FollowedKeys, IssuerKeys
from proxy.identity.tokens import SKEW_S, InvalidTokenError, TokenFault, TokenVerifier
from proxy.keys.access import Refused
from proxy.keys.keyring import Keyring
from proxy.settings.identities import IdentitySettings

# Tokens of GitHub, GitLab and of users with fifty groups have 1 to 4 kB. The verification of so long a one takes 4 ms.
TOKEN_CHARS_MAX = 8 << 10
# The issuer may withdraw a key before the tokens that it has signed expire.
VERIFIED_S = 300.0
# A project may be created, and a clock may go on.
REFUSED_S = 2.0
# Tokens that are remembered, about 1,300 bytes each; above it, those that were not used for the longest time are
# verified again.
REMEMBERED_MAX = 5_000

_FAULTS = {
    TokenFault.INVALID: Refused.JWT_INVALID, TokenFault.EXPIRED: Refused.JWT_EXPIRED,
    TokenFault.EARLY: Refused.JWT_EARLY,
}  # fmt: skip
_GUESSES = frozenset({Refused.JWT_INVALID, Refused.JWT_ELSEWHERE})
"""no issuer has signed such a token for this deployment"""
_NOT_SIGNED = _GUESSES | {Refused.ISSUER_UNAVAILABLE}
"""the signature is wrong, or was not verified"""


@dataclass(slots=True, eq=False)
class VerifiedToken:
    """A verified token: its key and its dimensions."""

    wanted: IdentityKey
    dimensions: SentDimensions
    expires_at: float
    """Unix seconds"""
    _last: tuple[ApiKey, ApiKey] | None = None
    """the key, and the key with the dimensions"""

    def of_person(self, key: ApiKey) -> ApiKey:
        """The key with the dimensions of the token; those that an operator has fixed for it replace them. One object
        until the key changes."""
        if self._last is None or self._last[0] is not key:
            of_key = key.dimensions or KeyDimensions()
            dimensions = replace(of_key, fixed={**self.dimensions, **of_key.fixed})
            person = f"p_{hashlib.sha256(f'{key.key_id}/{self.dimensions[END_USER]}'.encode()).hexdigest()[:32]}"
            self._last = key, replace(key, dimensions=dimensions, holder=person, branch_ids=(person,))
        return self._last[1]


class _Addressed(msgspec.Struct):
    """The claims that select an identity."""

    iss: str
    aud: str | list[str]


_addressed = msgspec.json.Decoder(_Addressed)


class Identity:
    """One configured identity, and the keys of its issuer."""

    def __init__(self, settings: IdentitySettings) -> None:
        """Raises SettingsError for a certificate's file."""
        self.settings = settings
        outage = Outage(OutageLog(f"fetching the keys of the issuer of identities.{settings.name}"))
        self.keys = FollowedKeys(issuer_keys(settings), outage)

    def is_meant(self, addressed: _Addressed) -> bool:
        """True if the token names this issuer and audience; not verified."""
        audiences = [addressed.aud] if isinstance(addressed.aud, str) else addressed.aud
        return addressed.iss.removesuffix("/") == self.settings.issuer and self.settings.audience in audiences

    async def claims(self, token: str, issuer: str) -> dict[str, Any] | Refused:
        """The verified claims. `issuer`: with or without the slash at its end, as in the token."""
        try:
            claims = await TokenVerifier(issuer, self.settings.audience, self.keys).claims(token)
        except InvalidTokenError as refused:
            return _FAULTS[refused.fault]
        except IdentityProviderError:
            return Refused.ISSUER_UNAVAILABLE
        required = self.settings.require.items()
        return claims if all(values & set(claim_values(claims, name)) for name, values in required) else (
            Refused.JWT_CLAIMS
        )  # fmt: skip

    def project(self, claims: Mapping[str, Any]) -> str | None:
        """The id or the name of the project; None: the token belongs to none."""
        settings = self.settings
        if settings.claims.project is None:
            return settings.project
        values = claim_values(claims, settings.claims.project)
        if not settings.projects:
            return values[0] if len(values) == 1 else None
        return next((project for value, project in settings.projects.items() if value in values), None)

    def dimensions(self, claims: Mapping[str, Any]) -> SentDimensions | None:
        """The dimensions by the claims: end user, session, run and tags. None: the claim of the end user is missing."""
        found = within_limits(_dimensions(self.settings, claims))
        return found if END_USER in found else None

    def key(self, project: Account) -> IdentityKey:
        """The key of this identity in a project."""
        first = self.settings.key
        return IdentityKey(self.settings.name, project, first.limits, first.models, first.byok)


class Identities:
    """The `TokenKeys` of a process."""

    def __init__(self, keyring: Keyring, tasks: Tasks, *, unix_time: Callable[[], float]) -> None:
        """`tasks`: fetch the keys of the issuers."""
        self._keyring = keyring
        self._tasks = tasks
        self._unix_time = unix_time
        self._identities: dict[str, Identity] = {}
        self._following: dict[str, asyncio.Task[Any]] = {}
        self._remembered: OrderedDict[bytes, tuple[VerifiedToken | Refused, float]] = OrderedDict()
        """digest of a token → the result, and the end of its validity in Unix seconds"""

    def prepared(self, settings: Mapping[str, IdentitySettings]) -> Callable[[], None]:
        """Prepare these settings. Returns a function that applies them. May be called in a thread. Raises
        SettingsError."""
        if settings:
            import_module("jwt")  # takes 0.2 s, which no request shall wait for
        known = self._identities
        identities = {
            name: known[name] if name in known and known[name].settings == one else Identity(one)
            for name, one in settings.items()
        }
        return partial(self._use, identities)

    def _use(self, identities: dict[str, Identity]) -> None:
        for name, one in self._identities.items():
            if identities.get(name) is not one:
                self._following.pop(name).cancel()
        for name, one in identities.items():
            if name not in self._following:
                self._following[name] = self._tasks.start(one.keys.run(), name=f"keys of {name}")
        self._identities = identities
        self._remembered.clear()
        self._keyring.tokens = self if identities else None

    async def key(self, token: str, address: str | None) -> ApiKey | Refused:
        """See `TokenKeys`."""
        verified = await self._found(token, address)
        if isinstance(verified, Refused):
            return self._keyring.counted(verified, address) if verified in _GUESSES else verified
        key = await self._keyring.of_identity(verified.wanted)
        return key if isinstance(key, Refused) else verified.of_person(key)

    async def _found(self, token: str, address: str | None) -> VerifiedToken | Refused:
        if len(token) > TOKEN_CHARS_MAX or not token.isascii():
            return Refused.JWT_INVALID
        digest = hashlib.blake2b(token.encode(), digest_size=32).digest()
        found, until = self._remembered.get(digest, (Refused.UNKNOWN, 0.0))
        if self._unix_time() < until:
            self._remembered.move_to_end(digest)
            return found
        if self._keyring.retry_after_s(address):
            return Refused.TOO_MANY
        identities = self._identities
        found = await self._verify(token)
        if self._identities is identities and found not in _NOT_SIGNED:
            self._remember(digest, found)
        return found

    def _remember(self, digest: bytes, found: VerifiedToken | Refused) -> None:
        now = self._unix_time()
        until = now + REFUSED_S if isinstance(found, Refused) else min(now + VERIFIED_S, found.expires_at)
        self._remembered[digest] = found, until
        self._remembered.move_to_end(digest)
        if len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)

    async def _verify(self, token: str) -> VerifiedToken | Refused:
        addressed = _read_addressed(token)
        if addressed is None:
            return Refused.JWT_INVALID
        identity = next((one for one in self._identities.values() if one.is_meant(addressed)), None)
        if identity is None:
            return Refused.JWT_ELSEWHERE
        claims = await identity.claims(token, addressed.iss)
        if isinstance(claims, Refused):
            return claims
        dimensions, project = identity.dimensions(claims), identity.project(claims)
        if dimensions is None:
            return Refused.JWT_CLAIMS
        account = None if project is None else await self._keyring.project(project)
        if account is None:
            return Refused.JWT_PROJECT
        return VerifiedToken(identity.key(account), dimensions, float(claims["exp"]) + SKEW_S)


def issuer_keys(settings: IdentitySettings) -> IssuerKeys:
    """The keys of the issuer. Raises SettingsError for a certificate's file."""
    return IssuerKeys(partial(_key_set, settings, document_client(settings, f"identities.{settings.name}")))


async def _key_set(settings: IdentitySettings, documents: DocumentClient) -> Any:
    jwks = settings.jwks or (await discover(documents, settings.issuer, IssuerDocument)).jwks_uri
    return await documents.get(jwks)


def _dimensions(settings: IdentitySettings, claims: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for dimension, claim in settings.claims.dimensions():
        values = claim_values(claims, claim)
        value = value_of(values[0]) if values else None
        if value is not None:
            yield dimension, value


def _read_addressed(token: str) -> _Addressed | None:
    """The claims that select an identity, not verified; None: that is no JWT."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        return _addressed.decode(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (msgspec.MsgspecError, binascii.Error, ValueError, RecursionError):
        return None
