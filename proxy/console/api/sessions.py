"""Authentication of console requests.

Invariants:
- Every request carries a secret of an operator or an active key in a header, or the cookie of an operator's session.
- A session is a cookie with a name, its end, and a MAC by the operator's secret: nothing is stored, every process
  accepts it, and a new secret ends it. Scripts of the page cannot read it.
- A request that changes something is accepted with a cookie only from the console's own page.
- A wrong credential counts towards the rate limit of failed sign-ins.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.cookies import SimpleCookie
from urllib.parse import urlsplit

from aiohttp import web

from proxy.billing.keys import ApiKey
from proxy.foundation.secret import Secret
from proxy.http import errors
from proxy.http.credentials import presented
from proxy.http.errors import ApiError
from proxy.keys.keyring import Keyring
from proxy.keys.secrets import parse
from proxy.settings.listeners import AdminSettings, OperatorRole

ADMIN = "admin"
"""the name of the operator of `admin.secret` in the audit log"""
COOKIE = "tokenweir_session"
"""the beginning of the cookie's name"""
SESSION_S = 8 * 3600
# A session that is used gets its whole time again, at most this often.
RENEWED_S = 300
_PORT = re.compile(r":([0-9]{1,5})$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Operator:
    """Somebody who signs in with a secret that is no key."""

    name: str
    role: OperatorRole
    digest: bytes
    """SHA-256 of the secret"""

    def cookie(self, until: int) -> str:
        """The content of a session's cookie. `until`: Unix seconds."""
        what = f"{self.name}.{until}"
        return f"{what}.{hmac.new(self.digest, what.encode(), hashlib.sha256).hexdigest()}"


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
        return ADMIN if self.operator is None else self.operator.name

    def may_see(self, key_id: str) -> bool:
        """True if the caller may see the data of this key."""
        return self.key is None or self.key.key_id == key_id

    def check_role(self, role: OperatorRole) -> None:
        """Raises ApiError 403 if the caller may do less."""
        if self.operator is None:
            message = "Only an operator may do this; sign in with an operator's secret."
            raise ApiError(403, message, kind="permission_error", code="operator_only")
        if not self.operator.role.includes(role):
            message = f"Your role '{self.operator.role}' does not allow this: it needs '{role}' (admin.operators)."
            raise ApiError(403, message, kind="permission_error", code="role_too_low")


class Sessions:
    """Authenticates requests, and signs operators in and out."""

    def __init__(self, keyring: Keyring, admin: AdminSettings | None, unix_time: Callable[[], float]) -> None:
        """`admin`: the operators; with None, only keys can sign in."""
        self._keyring = keyring
        self._operators = {one.name: one for one in _operators(admin)}
        self._unix_time = unix_time

    async def of(self, request: web.BaseRequest) -> ConsoleSession:
        """The caller. Raises ApiError 401, 403 for a change from another page, or 429 after too many failed
        sign-ins."""
        text = presented(request, parse)
        if text is None and self._operators and (cookie := request.cookies.get(cookie_name(request.host))) is not None:
            return self._of_cookie(cookie, request)
        if text:
            given = _digest(text)
            # Digests have one length, and all are compared, so the time reveals nothing about the secrets.
            matches = [one for one in self._operators.values() if hmac.compare_digest(given, one.digest)]
            if matches:
                return ConsoleSession(None, request.remote, matches[0])
        key = await self._keyring.key(text, request.remote)
        if isinstance(key, str):
            raise self._refusal(key)
        return ConsoleSession(key, request.remote)

    def _of_cookie(self, cookie: str, request: web.BaseRequest) -> ConsoleSession:
        name, _, rest = cookie.rpartition(".")[0].rpartition(".")
        operator = self._operators.get(name)
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
        """Begin a session of the operator."""
        session.check_role(OperatorRole.READ)
        assert session.operator is not None
        text = session.operator.cookie(int(self._unix_time()) + SESSION_S)
        response.headers.add("Set-Cookie", _set_cookie(request, text, SESSION_S))

    def sign_out(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Let the browser forget the session."""
        response.headers.add("Set-Cookie", _set_cookie(request, "", 0))

    def renew(self, session: ConsoleSession, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Give a session that is used its whole time again."""
        if session.until is not None and session.until < self._unix_time() + SESSION_S - RENEWED_S:
            self.sign_in(session, request, response)

    def is_half_over(self, session: ConsoleSession) -> bool:
        """Whether a session has less than half of its time left."""
        return session.until is not None and session.until < self._unix_time() + SESSION_S / 2

    def _refusal(self, reason: str) -> ApiError:
        refusal = errors.key_refused(reason)
        if refusal.code != "invalid_api_key":
            return refusal
        none = "" if self._operators else " No admin secret is set (admin.secret)."
        message = (
            f"Sign in with the admin secret, or with an API key for its own data: 'Authorization: Bearer …'.{none}"
        )
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


def _set_cookie(request: web.BaseRequest, text: str, age_s: int) -> str:
    name = cookie_name(request.host)
    cookie: SimpleCookie = SimpleCookie({name: text})
    attributes = {"path": "/", "max-age": str(age_s), "httponly": "1", "samesite": "Strict"}
    if request.headers.get("X-Forwarded-Proto") == "https":
        attributes["secure"] = "1"
    cookie[name].update(attributes)
    return cookie[name].OutputString()


def _of_secret(secret: Secret) -> bytes:
    return _digest(secret.reveal())


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
