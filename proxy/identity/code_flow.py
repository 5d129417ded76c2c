"""The authorization code flow of OpenID Connect with PKCE, for one client of one issuer.

Invariants: the issuer's own configuration names it, or is not used. A code is exchanged only with the verifier of the
challenge, and its token is accepted only with the nonce, that the flow began with.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import Any
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

import msgspec

from proxy.foundation.addresses import is_tls_or_loopback
from proxy.foundation.secret import Secret
from proxy.identity.discovery import IssuerDocument, configuration_url, discover
from proxy.identity.documents import DocumentClient, IdentityProviderError, KeptDocument
from proxy.identity.keys import IssuerKeys
from proxy.identity.tokens import InvalidTokenError, TokenVerifier

_ERROR = re.compile(r"[a-z_]{1,64}", re.ASCII)
_BASIC, _POST = "client_secret_basic", "client_secret_post"


class IssuerConfiguration(IssuerDocument, frozen=True, kw_only=True):
    """The used members of the document that an issuer publishes."""

    authorization_endpoint: str
    token_endpoint: str
    token_endpoint_auth_methods_supported: tuple[str, ...] = (_BASIC,)
    authorization_response_iss_parameter_supported: bool = False


class FlowSecrets(msgspec.Struct, frozen=True):
    """What binds the answers of a flow to its beginning; fresh random texts for each."""

    state: str
    nonce: str
    verifier: str
    """43 to 128 characters"""


class CodeFlow:
    """Begins and ends sign-ins."""

    def __init__(
        self, documents: DocumentClient, *, issuer: str, client_id: str, client_secret: Secret, redirect_uri: str
    ) -> None:
        """`issuer`: without a slash at its end."""
        self._documents = documents
        self._issuer = issuer
        self._client_id = client_id
        self._client_secret = client_secret
        self._redirect_uri = redirect_uri
        self._configuration = KeptDocument(self._discover)
        self._keys = IssuerKeys(self._key_set)

    async def check(self) -> None:
        """Fetch the issuer's configuration and keys. Raises IdentityProviderError."""
        await self._keys.check()

    async def location(self, secrets: FlowSecrets, scopes: frozenset[str]) -> str:
        """The URL at the issuer to which the browser goes. Raises IdentityProviderError."""
        configuration = await self._configuration.value()
        challenge = base64.urlsafe_b64encode(hashlib.sha256(secrets.verifier.encode()).digest()).rstrip(b"=")
        query = urlencode(
            {
                "response_type": "code", "client_id": self._client_id, "redirect_uri": self._redirect_uri,
                "scope": " ".join(["openid", *sorted(scopes - {"openid"})]), "state": secrets.state,
                "nonce": secrets.nonce, "code_challenge": challenge.decode(), "code_challenge_method": "S256",
            }
        )  # fmt: skip
        parts = urlsplit(configuration.authorization_endpoint)
        return urlunsplit(parts._replace(query=f"{parts.query}&{query}" if parts.query else query, fragment=""))

    async def check_sender(self, issuer: str | None) -> None:
        """`issuer`: the parameter `iss` of the answer (RFC 9207). Raises InvalidTokenError if the answer is another
        issuer's, IdentityProviderError."""
        configuration = await self._configuration.value()
        needed = configuration.authorization_response_iss_parameter_supported
        if issuer != configuration.issuer and (needed or issuer is not None):
            raise InvalidTokenError("the answer is from another issuer")

    async def claims(self, code: str, secrets: FlowSecrets) -> dict[str, Any]:
        """The claims of the ID token for this code. Raises InvalidTokenError, IdentityProviderError."""
        configuration = await self._configuration.value()
        token = await self._id_token(configuration, code, secrets.verifier)
        claims = await TokenVerifier(configuration.issuer, self._client_id, self._keys).claims(token)
        # For several audiences, `azp` names the client that it was issued to (OpenID Connect Core 3.1.3.7).
        is_shared = not isinstance(claims["aud"], str) and len(claims["aud"]) > 1
        if claims.get("azp", None if is_shared else self._client_id) != self._client_id:
            raise InvalidTokenError("the token was issued to another client")
        nonce = claims.get("nonce")
        if not isinstance(nonce, str) or not hmac.compare_digest(
            nonce.encode("utf-8", "replace"), secrets.nonce.encode()
        ):
            raise InvalidTokenError("the token belongs to another sign-in")
        return claims

    async def _id_token(self, configuration: IssuerConfiguration, code: str, verifier: str) -> str:
        form = {
            "grant_type": "authorization_code", "code": code, "redirect_uri": self._redirect_uri,
            "code_verifier": verifier,
        }  # fmt: skip
        headers = {}
        methods, secret = configuration.token_endpoint_auth_methods_supported, self._client_secret.reveal()
        if _BASIC in methods or _POST not in methods:
            # Both are encoded as in a form first (RFC 6749, 2.3.1).
            pair = f"{quote(self._client_id, safe='')}:{quote(secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": self._client_id, "client_secret": secret}
        status, answer = await self._documents.post(configuration.token_endpoint, form, headers)
        given = answer if isinstance(answer, dict) else {}
        if status != 200:
            raise IdentityProviderError(f"the identity provider refused the code: {error_code(given.get('error'))}")
        token = given.get("id_token")
        if not isinstance(token, str):
            raise InvalidTokenError("the identity provider sent no ID token")
        return token

    async def _discover(self) -> IssuerConfiguration:
        found = await discover(self._documents, self._issuer, IssuerConfiguration)
        url = configuration_url(self._issuer)
        try:
            is_safe = is_tls_or_loopback(found.authorization_endpoint)
        except ValueError:
            raise IdentityProviderError(f"{url}: is not the configuration of an OpenID provider") from None
        if not is_safe:
            raise IdentityProviderError(f"{url}: has an `authorization_endpoint` that is not https://")
        return found

    async def _key_set(self) -> Any:
        return await self._documents.get((await self._configuration.value()).jwks_uri)


def error_code(value: object) -> str:
    """The code of an OAuth error; `unknown error` for anything else."""
    return value if isinstance(value, str) and _ERROR.fullmatch(value) else "unknown error"
