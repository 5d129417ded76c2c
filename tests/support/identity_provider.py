"""A small OpenID provider on a real socket, which a test can break.

It checks what a provider must: client, redirect address, PKCE, and that a code is used once. `claims` are those of its
user, `token` makes the ID token, and `broken` has answers that take the place of its own.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.support.web_server import as_json, serving

CLIENT_ID, CLIENT_SECRET = "tokenweir:console", "a+secret/of%the=client"
WELL_KNOWN = "/.well-known/openid-configuration"


@dataclass(frozen=True)
class SigningKey:
    """A private key of the provider."""

    key_id: str | None
    algorithm: str
    private: Any

    @property
    def jwk(self) -> dict[str, Any]:
        """The public key."""
        kind = jwt.algorithms.get_default_algorithms()[self.algorithm]
        named = {} if self.key_id is None else {"kid": self.key_id}
        return {**kind.to_jwk(self.private.public_key(), as_dict=True), "use": "sig", **named}

    def signed(self, claims: dict[str, Any], **headers: Any) -> str:
        """A token."""
        named = {} if self.key_id is None else {"kid": self.key_id}
        return jwt.encode(claims, self.private, self.algorithm, headers={**named, **headers})


@cache
def rsa_key(key_id: str | None = "rsa-1", bits: int = 2048) -> SigningKey:
    """An RSA key, made once in a run."""
    return SigningKey(key_id, "RS256", rsa.generate_private_key(65537, bits))


@cache
def ec_key(key_id: str | None = "ec-1") -> SigningKey:
    """A key on P-256, made once in a run."""
    return SigningKey(key_id, "ES256", ec.generate_private_key(ec.SECP256R1()))


@dataclass
class IdentityProvider:
    """Serves until it is closed."""

    keys: list[SigningKey] = field(default_factory=lambda: [ec_key()])
    claims: dict[str, Any] = field(
        default_factory=lambda: {"sub": "user-1", "email": "ann@example.com", "email_verified": True}
    )
    configuration: dict[str, Any] = field(default_factory=dict)
    """what differs from the usual"""
    token: Callable[[IdentityProvider, dict[str, Any]], str] = lambda self, claims: self.keys[0].signed(claims)
    broken: dict[str, Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]] = field(default_factory=dict)
    """path → the answer"""
    asked: list[str] = field(default_factory=list)
    """the paths of the requests"""

    def __post_init__(self) -> None:
        self._codes: dict[str, dict[str, str]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = serving(self._serve)
        self.url = asyncio.run_coroutine_threadsafe(self._server.__aenter__(), self._loop).result(10)

    def close(self) -> None:
        """Stop."""
        asyncio.run_coroutine_threadsafe(self._server.__aexit__(None, None, None), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def usual_claims(self, nonce: str) -> dict[str, Any]:
        """Those of an ID token of the user."""
        now = int(time.time())
        fixed = {"iss": self.url, "aud": CLIENT_ID, "iat": now, "exp": now + 300, "nonce": nonce}
        return {**fixed, **self.claims}

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.append(request.path)
        if (broken := self.broken.get(request.path)) is not None:
            return await broken(request)
        match request.path:
            case "/.well-known/openid-configuration":
                return as_json({**self._usual(), **self.configuration})
            case "/jwks":
                return as_json({"keys": [one.jwk for one in self.keys]})
            case "/authorize":
                return self._authorize(dict(parse_qsl(request.query_string)))
            case "/token":
                return self._exchange(request.headers, dict(parse_qsl(await request.text())))
        return web.Response(status=404)

    def _usual(self) -> dict[str, Any]:
        return {
            "issuer": self.url, "authorization_endpoint": f"{self.url}/authorize?tenant=1",
            "token_endpoint": f"{self.url}/token", "jwks_uri": f"{self.url}/jwks",
        }  # fmt: skip

    def _authorize(self, asked: dict[str, str]) -> web.Response:
        """Signs the user in without a question."""
        assert asked["client_id"] == CLIENT_ID
        assert (asked["response_type"], asked["code_challenge_method"], asked["tenant"]) == ("code", "S256", "1")
        assert "openid" in asked["scope"].split()
        code = secrets.token_urlsafe()
        self._codes[code] = asked
        answer = urlencode({"code": code, "state": asked["state"]})
        return web.Response(status=302, headers={"Location": f"{asked['redirect_uri']}?{answer}"})

    def _exchange(self, headers: Any, form: dict[str, str]) -> web.Response:
        pair = base64.b64decode(headers.get("Authorization", "").removeprefix("Basic ")).decode()
        given = dict(parse_qsl(f"u={pair.replace(':', '&p=')}"))
        if given != {"u": CLIENT_ID, "p": CLIENT_SECRET}:
            return as_json({"error": "invalid_client"}, 401)
        asked = self._codes.pop(form["code"], None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).decode()
        if (
            asked is None
            or form["redirect_uri"] != asked["redirect_uri"]
            or challenge.rstrip("=") != asked["code_challenge"]
        ):
            return as_json({"error": "invalid_grant"}, 400)
        return as_json({"token_type": "Bearer", "id_token": self.token(self, self.usual_claims(asked["nonce"]))})


def unsigned(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    """A token with any header and signature."""
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def query_of(url: str) -> dict[str, str]:
    """The query of a URL."""
    return dict(parse_qsl(urlsplit(url).query))
