"""Authentication of console requests.

Invariants:
- Every request carries a secret of an operator or an active key in a header, or the cookie of an operator's session. A
  narrowable key is accepted as the key itself, a narrowed one is not: what it may see depends on its caveats.
- A session is a cookie with a name, its end, and a MAC by the operator's secret: nothing is stored, every process
  accepts it, and a new secret ends it. Scripts of the page cannot read it.
- A session of an operator of an identity provider ends SESSION_S after the sign-in, however much it is used: a person
  without an account there is signed out by then. Its MAC is by a secret of the settings of `admin.oidc`.
- A request that changes something is accepted with a cookie only from the console's own page.
- A wrong credential counts towards the rate limit of failed sign-ins.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.cookies import SimpleCookie
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from proxy.billing.keys import ApiKey
from proxy.foundation.secret import Secret
from proxy.gateway.authentication import authenticated
from proxy.http import errors
from proxy.http.credentials import has_credential_header, presented
from proxy.http.errors import ApiError
from proxy.keys import narrowing
from proxy.keys.keyring import Keyring
from proxy.keys.secrets import is_ours
from proxy.ledger.accounts.audit_log import TEXT_CHARS_MAX
from proxy.settings.listeners import AdminSettings
from proxy.settings.operators import OperatorRole

ADMIN = "admin"
"""the name of the operator of `admin.secret` in the audit log"""
COOKIE = "tokenweir_session"
"""the beginning of the cookie's name"""
SESSION_S = 8 * 3600
# A session that is used gets its whole time again, at most this often.
RENEWED_S = 300
# No operator of the settings has such a name.
_BY_IDENTITY = "oidc:"
_PORT = re.compile(r":([0-9]{1,5})$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator, who signs in with a secret that is not a key's, or by the identity provider."""

    name: str
    role: OperatorRole
    digest: bytes
    """SHA-256 of the secret; of the identity provider's operators, the secret of their sessions"""
    identity: Identity | None = None
    """None: signed in with a secret"""

    @property
    def actor(self) -> str:
        """The name in the audit log."""
        if self.identity is None:
            return self.name
        rest = f" ({self.identity.issuer}, {self.identity.subject})"
        return self.name[: TEXT_CHARS_MAX - len(rest)] + rest

    def cookie(self, until: int) -> str:
        """The content of a session's cookie. `until`: Unix seconds."""
        handle = self.name if self.identity is None else _handle(self.name, self.role, self.identity.subject)
        what = f"{handle}.{until}"
        return f"{what}.{hmac.new(self.digest, what.encode(), hashlib.sha256).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Identity:
    """An account at the identity provider."""

    issuer: str
    subject: str


class IdentityOperators:
    """The operators who sign in by the identity provider: made from the claims at the sign-in, later from the
    cookie."""

    def __init__(self, issuer: str, key: bytes) -> None:
        """`key`: the secret of their sessions."""
        self._issuer = issuer
        self._key = key

    def operator(self, name: str, role: OperatorRole, subject: str) -> Operator:
        """The operator with this account."""
        return Operator(name, role, self._key, Identity(self._issuer, subject))

    def of_handle(self, handle: str) -> Operator | None:
        """The operator that a cookie names; its MAC is checked by the caller."""
        try:
            text = base64.urlsafe_b64decode(f"{handle.removeprefix(_BY_IDENTITY)}===".encode("ascii"))
            return self.operator(*msgspec.json.decode(text, type=tuple[str, OperatorRole, str]))
        except ValueError:
            return None


def _handle(name: str, role: OperatorRole, subject: str) -> str:
    return _BY_IDENTITY + base64.urlsafe_b64encode(msgspec.json.encode((name, role, subject))).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """An authenticated caller; `key` is None for an operator, and `operator` for a key."""

    key: ApiKey | None
    address: str | None
    operator: Operator | None = None
    until: int | None = None
    """Unix seconds of the end of the operator's session; None: the secret was sent"""

    @property
    def actor(self) -> str:
        """The caller's name in the audit log."""
        if self.key is not None:
            return self.key.key_id
        return ADMIN if self.operator is None else self.operator.actor

    @property
    def is_renewable(self) -> bool:
        """Whether the session can go on beyond its end."""
        return self.operator is not None and self.operator.identity is None

    def may_see(self, key_id: str) -> bool:
        """True if the caller may see the data of this key."""
        return self.key is None or (self.key.key_id == key_id and self.key.uses_stored)

    def check_role(self, role: OperatorRole) -> None:
        """Raises ApiError 403 if the caller may do less."""
        if self.operator is None:
            message = "Only an operator may do this; sign in with an operator's secret."
            raise ApiError(403, message, kind="permission_error", code="operator_only")
        if not self.operator.role.includes(role):
            setting = "admin.operators" if self.operator.identity is None else "admin.oidc.roles"
            message = f"Your role '{self.operator.role}' does not allow this: it needs '{role}' ({setting})."
            raise ApiError(403, message, kind="permission_error", code="role_too_low")


class Sessions:
    """Authenticates requests, and signs operators in and out."""

    def __init__(
        self,
        keyring: Keyring,
        admin: AdminSettings | None,
        unix_time: Callable[[], float],
        by_identity: IdentityOperators | None = None,
    ) -> None:
        """`admin`: the operators; None: for clients, whose keys and tokens are accepted as by the gateway."""
        self._keyring = keyring
        self._by_identity = by_identity
        self._is_on = admin is not None and admin.is_on
        self._operators = {one.name: one for one in _operators(admin)}
        self._unix_time = unix_time

    async def of(self, request: web.BaseRequest) -> ConsoleSession:
        """The caller. Raises ApiError 401, 403 for a change from another page, or 429 after too many failed
        sign-ins."""
        if not self._is_on:
            return ConsoleSession(await authenticated(self._keyring, request), request.remote)
        cookie = request.cookies.get(cookie_name(request.host))
        # With a session, the parameter `key` of a query is no credential in the URL.
        text = presented(request, is_ours) if cookie is None or has_credential_header(request) else None
        if text is None and cookie is not None:
            return self._of_cookie(cookie, request)
        if text:
            given = _digest(text)
            # Digests have one length, and all are compared, so the time reveals nothing about the secrets.
            matches = [one for one in self._operators.values() if hmac.compare_digest(given, one.digest)]
            if matches:
                return ConsoleSession(None, request.remote, matches[0])
        return ConsoleSession(await self._key(text, request.remote), request.remote)

    async def _key(self, text: str | None, address: str | None) -> ApiKey:
        """The active key with this secret. Raises ApiError."""
        if text is None or narrowing.parse(text) is None:
            key = await self._keyring.key(text, address)
        else:
            key = await self._keyring.narrowed_key(text, address)
        if isinstance(key, str):
            raise self._refusal(key)
        if key.is_narrowed:
            message = "A narrowed key cannot sign in to the console. Use the key that it was made from."
            raise ApiError(403, message, kind="permission_error", code="narrowed_key")
        return key

    def _of_cookie(self, cookie: str, request: web.BaseRequest) -> ConsoleSession:
        name, _, rest = cookie.rpartition(".")[0].rpartition(".")
        operator = self._operators.get(name)
        if self._by_identity is not None and name.startswith(_BY_IDENTITY):
            operator = self._by_identity.of_handle(name)
        until = int(rest) if rest.isascii() and rest.isdecimal() and len(rest) < 12 else 0
        if operator is None or not hmac.compare_digest(
            operator.cookie(until).encode(), cookie.encode("utf-8", "replace")
        ):
            raise self._refusal("unknown")
        if self._unix_time() >= until:
            raise ApiError(
                401, "Your session has ended; sign in again.", kind="authentication_error", code="session_ended"
            )
        if request.method not in ("GET", "HEAD") and not _is_from_our_page(request):
            message = "A session is accepted from the console's own page only; send the secret in a header."
            raise ApiError(403, message, kind="permission_error", code="other_page")
        return ConsoleSession(None, request.remote, operator, until)

    def sign_in(self, session: ConsoleSession, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Begin a session of the operator; one of the identity provider's operators keeps its end."""
        session.check_role(OperatorRole.READ)
        assert session.operator is not None
        if session.is_renewable:
            self.begin(session.operator, request, response)

    def begin(
        self, operator: Operator, request: web.BaseRequest, response: web.StreamResponse, *, secure: bool = False
    ) -> None:
        """Begin a session. `secure`: the browser uses https://, whatever the request's headers say."""
        text = operator.cookie(int(self._unix_time()) + SESSION_S)
        response.headers.add("Set-Cookie", _set_cookie(request, text, SESSION_S, secure=secure))

    def sign_out(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Delete the session's cookie in the browser."""
        response.headers.add("Set-Cookie", _set_cookie(request, "", 0))

    def renew(self, session: ConsoleSession, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Renew a session that is used: it gets its whole time again."""
        is_old = session.until is not None and session.until < self._unix_time() + SESSION_S - RENEWED_S
        if is_old and session.is_renewable:
            self.sign_in(session, request, response)

    def is_half_over(self, session: ConsoleSession) -> bool:
        """Whether a session that can be renewed has less than half of its time left."""
        return session.until is not None and session.is_renewable and session.until < self._unix_time() + SESSION_S / 2

    def _refusal(self, reason: str) -> ApiError:
        refusal = errors.key_refused(reason)
        if refusal.code != "invalid_api_key":
            return refusal
        message = "Sign in with the admin secret, or with an API key for its own data: 'Authorization: Bearer …'."
        return ApiError(401, message, kind="authentication_error", code=refusal.code)


def _operators(admin: AdminSettings | None) -> Iterator[Operator]:
    if admin is not None:
        if admin.secret is not None:
            yield Operator(ADMIN, OperatorRole.ADMIN, _of_secret(admin.secret))
        for name, one in admin.operators.items():
            yield Operator(name, one.role, _of_secret(one.secret))


def _is_from_our_page(request: web.BaseRequest) -> bool:
    """Browsers tell where a request comes from, and pages cannot change it."""
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site is not None:
        return site == "same-origin"
    return origin is None or urlsplit(origin).netloc == request.headers.get("Host")


def cookie_name(host: str) -> str:
    """The name of the session's cookie. `host`: the Host header. Browsers send a cookie to all ports of a host, so that
    consoles on two ports would end each other's sessions under one name."""
    port = _PORT.search(host)
    return COOKIE if port is None else f"{COOKIE}_{port[1]}"


def _set_cookie(request: web.BaseRequest, text: str, age_s: int, *, secure: bool = False) -> str:
    is_secure = secure or request.headers.get("X-Forwarded-Proto") == "https"
    return cookie_text(cookie_name(request.host), text, age_s, same_site="Strict", secure=is_secure)


def cookie_text(name: str, text: str, age_s: int, *, same_site: str, secure: bool) -> str:
    """The header `Set-Cookie` of a cookie that no script can read."""
    cookie: SimpleCookie = SimpleCookie({name: text})
    attributes = {"path": "/", "max-age": str(age_s), "httponly": "1", "samesite": same_site}
    if secure:
        attributes["secure"] = "1"
    cookie[name].update(attributes)
    return cookie[name].OutputString()


def _of_secret(secret: Secret) -> bytes:
    return _digest(secret.reveal())


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
