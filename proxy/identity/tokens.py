"""Verification of a JWT: issuer, audience and keys → claims.

Invariants: no claim is returned unless the signature, the issuer, the audience and the times are valid. The clocks may
differ by SKEW_S.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from proxy.identity.keys import ALGORITHMS

if TYPE_CHECKING:
    from jwt import PyJWK

# `{"` in base64: so every JWT begins.
JWT_START = "eyJ"
SKEW_S = 60
# A token with 200 groups has 10 kB.
TOKEN_CHARS_MAX = 64 << 10


class TokenFault(StrEnum):
    """Why a token is not accepted."""

    INVALID = "invalid"
    EXPIRED = "expired"
    """the token has expired"""
    EARLY = "early"
    """the token is not valid yet"""


class InvalidTokenError(ValueError):
    """The token is not accepted. The message has nothing of the token."""

    def __init__(self, message: str, fault: TokenFault = TokenFault.INVALID) -> None:
        super().__init__(message)
        self.fault = fault


class KeySource(Protocol):
    """The keys of an issuer; see `IssuerKeys`."""

    async def of(self, key_id: str | None, algorithm: str) -> PyJWK | None: ...


@dataclass(frozen=True, slots=True)
class TokenVerifier:
    """Verifies the tokens of one issuer for one audience."""

    issuer: str
    audience: str
    keys: KeySource

    async def claims(self, token: str) -> dict[str, Any]:
        """The claims; `iss`, `sub`, `aud`, `iat` and `exp` are among them. Raises InvalidTokenError,
        IdentityProviderError."""
        import jwt  # 0.2 s, for those who use it

        if len(token) > TOKEN_CHARS_MAX or not token.isascii():
            raise InvalidTokenError(f"the token is longer than {TOKEN_CHARS_MAX >> 10} KiB, or not ASCII")
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise InvalidTokenError("the token is malformed") from None
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise InvalidTokenError("the token is not signed with an asymmetric algorithm")
        key = await self.keys.of(header.get("kid"), algorithm)
        if key is None:
            raise InvalidTokenError("the token is not signed with a known key of its issuer")
        try:
            return jwt.decode(
                token, key, algorithms=[algorithm], audience=self.audience, issuer=self.issuer, leeway=SKEW_S,
                options={"require": ["iss", "sub", "aud", "iat", "exp"], "enforce_minimum_key_length": True},
            )  # fmt: skip
        except (jwt.PyJWTError, ValueError, RecursionError) as refused:
            raise InvalidTokenError(_reason(refused), _fault(refused)) from None


def _fault(refused: Exception) -> TokenFault:
    import jwt

    if isinstance(refused, jwt.ExpiredSignatureError):
        return TokenFault.EXPIRED
    return TokenFault.EARLY if isinstance(refused, jwt.ImmatureSignatureError) else TokenFault.INVALID


def _reason(refused: Exception) -> str:
    import jwt

    reasons = (
        (jwt.ExpiredSignatureError, "has expired"),
        (jwt.ImmatureSignatureError, "is not valid yet: compare the clocks"),
        (jwt.InvalidSignatureError, "has a wrong signature"),
        (jwt.InvalidKeyError, "is signed with a key that is too short"),
        (jwt.InvalidIssuerError, "is from another issuer"),
        (jwt.InvalidAudienceError, "is for another audience"),
        (jwt.MissingRequiredClaimError, "lacks a claim (iss, sub, aud, iat and exp are required)"),
    )
    return f"the token {next((text for kind, text in reasons if isinstance(refused, kind)), 'is malformed')}"
