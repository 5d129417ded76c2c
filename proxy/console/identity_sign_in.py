"""Sign-in of operators by an identity provider.

Invariants:
- A sign-in ends only in the browser that began it, within FLOW_S: its state, nonce and PKCE verifier are derived from
  a random text that only this browser's cookie has.
- No address in a redirect comes from a request: neither from its query nor from its Host.
- A user without a role in the settings gets no session.
- While the identity provider does not answer, secrets still sign operators in.
"""

from __future__ import annotations

import hashlib
import hmac
import html
import json
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from aiohttp import web

from proxy.console.api.endpoints import HEADERS
from proxy.console.api.sessions import IdentityOperators, Operator, Sessions, cookie_text
from proxy.http.connection import ClientConnection
from proxy.http.server import Routes
from proxy.identity.claims import claim_values
from proxy.identity.code_flow import CodeFlow, FlowSecrets, error_code
from proxy.identity.documents import IdentityProviderError, document_client
from proxy.identity.tokens import InvalidTokenError
from proxy.settings.operators import OidcSettings

PATH = "/v1/session/oidc"
CALLBACK = f"{PATH}/callback"
COOKIE = "tokenweir_oidc"
# Time for a password, a second factor, and a new password.
FLOW_S = 600
# Sign-ins that wait for the identity provider at once.
WAITING_MAX = 16
# OpenID Connect allows 255; the audit log has 256 for name, issuer and subject.
SUBJECT_CHARS_MAX = 128
NAME_CHARS_MAX = 64

PAGE_HEADERS: Mapping[str, str] = {
    **HEADERS,
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
}
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Not signed in · Tokenweir</title><link rel="stylesheet" href="{url}/page/console.css"></head>
<body><main><div class="card sign-in"><h1>Not signed in</h1><p class="notice bad" role="alert">{message}</p>
<p><a href="{url}/">Back to the sign-in</a></p></div></main></body></html>
"""
_log = logging.getLogger(__name__)


class SignInRefusedError(Exception):
    """The sign-in was refused, without a session. The message is for the person who signs in."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class IdentitySignIn:
    """The routes that begin and end a sign-in."""

    def __init__(self, oidc: OidcSettings, public_url: str, pepper: bytes, *, unix_time: Callable[[], float]) -> None:
        """`pepper`: the secret that the proxies share. Raises SettingsError for a certificate's file."""
        self._oidc = oidc
        self._url = public_url
        self._unix_time = unix_time
        self._waiting = 0
        self._key = _key(oidc, pepper)
        self._flow = code_flow(oidc, public_url)
        parts = urlsplit(public_url)
        self._secure = parts.scheme == "https"
        # Browsers accept the prefix from https:// only, and then no other host of the domain can set the cookie.
        self._cookie = f"{'__Host-' if self._secure else ''}{COOKIE}{f'_{parts.port}' if parts.port else ''}"
        self.operators = IdentityOperators(oidc.issuer, _derived(self._key, "session"))

    @property
    def link(self) -> dict[str, str]:
        """The label and the URL of the sign-in button on the page."""
        return {"label": self._oidc.label, "url": f"{self._url}{PATH}"}

    def add(self, routes: Routes, sessions: Sessions) -> None:
        """Add the routes."""

        async def begin(_request: web.BaseRequest, _connection: ClientConnection) -> web.StreamResponse:
            cookie = f"{secrets.token_urlsafe(32)}.{int(self._unix_time()) + FLOW_S}"
            try:
                location = await self._bounded(self._flow.location, _secrets(self._key, cookie), self._oidc.scopes)
            except SignInRefusedError as refused:
                return self._refusal(refused)
            response = _redirect(location)
            response.headers.add("Set-Cookie", self._set_cookie(cookie, FLOW_S))
            return response

        async def end(request: web.BaseRequest, _connection: ClientConnection) -> web.StreamResponse:
            try:
                operator = await self._operator(request)
            except SignInRefusedError as refused:
                response = self._refusal(refused)
            else:
                _log.info("signed in by the identity provider: %s, role %s", operator.actor, operator.role)
                response = _redirect(f"{self._url}/")
                sessions.begin(operator, request, response, secure=self._secure)
            response.headers.add("Set-Cookie", self._set_cookie("", 0))
            return response

        routes.local("GET", PATH, begin)
        routes.local("GET", CALLBACK, end)

    async def _operator(self, request: web.BaseRequest) -> Operator:
        """The operator who signed in at the identity provider. Raises SignInRefusedError."""
        answer, flow = _parameters(request), self._begun(request.cookies.get(self._cookie, ""))
        if flow is None or not hmac.compare_digest(
            answer.get("state", "").encode("utf-8", "replace"), flow.state.encode()
        ):
            raise SignInRefusedError(
                400, "This sign-in was not begun in this browser, or more than ten minutes ago. Begin it again."
            )
        await self._bounded(self._flow.check_sender, answer.get("iss"))
        code = answer.get("code")
        if not code:
            reason = error_code(answer.get("error"))
            raise SignInRefusedError(403, f"The identity provider did not sign you in ({reason}).")
        claims = await self._bounded(self._flow.claims, code, flow)
        return self._with_role(claims)

    def _begun(self, cookie: str) -> FlowSecrets | None:
        """The secrets of the flow that this browser began; None: none did, or too long ago."""
        until = cookie.rpartition(".")[2]
        is_time = until.isascii() and until.isdecimal() and len(until) < 12
        return _secrets(self._key, cookie) if is_time and self._unix_time() < int(until) else None

    async def _bounded(self, ask: Callable[..., Any], *arguments: Any) -> Any:
        """The result of `ask`, a few at once. Raises SignInRefusedError."""
        if self._waiting >= WAITING_MAX:
            raise SignInRefusedError(503, "Too many sign-ins wait for the identity provider. Try again later.")
        self._waiting += 1
        try:
            return await ask(*arguments)
        except IdentityProviderError as failure:
            _log.error("sign-in by the identity provider failed: %s", failure)
            raise SignInRefusedError(502, f"The identity provider cannot be used now: {failure}.") from None
        except InvalidTokenError as refused:
            _log.warning("sign-in by the identity provider refused: %s", refused)
            raise SignInRefusedError(403, f"The identity provider's answer was refused: {refused}.") from None
        finally:
            self._waiting -= 1

    def _with_role(self, claims: Mapping[str, Any]) -> Operator:
        oidc, subject = self._oidc, claims["sub"]
        if not (0 < len(subject) <= SUBJECT_CHARS_MAX and subject.isascii() and subject.isprintable()):
            raise SignInRefusedError(403, f"Your subject (`sub`) is not 1 to {SUBJECT_CHARS_MAX} ASCII characters.")
        name = "".join(filter(str.isprintable, next(iter(claim_values(claims, oidc.name_claim)), "")))
        name = name[:NAME_CHARS_MAX].strip() or subject[:NAME_CHARS_MAX]
        addresses = (one for one in claim_values(claims, "email") if one.isascii() and "@" in one)
        domains = {one.rpartition("@")[2].lower() for one in addresses}
        if oidc.email_domains and not domains & oidc.email_domains:
            _log.warning(
                "sign-in refused: subject %s has no verified e-mail address in admin.oidc.email_domains", subject
            )
            raise SignInRefusedError(403, f"{name}: you have no verified e-mail address in an allowed domain.")
        roles = [oidc.roles[value] for value in claim_values(claims, oidc.role_claim) if value in oidc.roles]
        if not roles:
            _log.warning("sign-in refused: subject %s has no role by admin.oidc.roles", subject)
            raise SignInRefusedError(
                403,
                f"{name}: you have no role here. Your identity provider's claim '{oidc.role_claim}' has none of the "
                "values in admin.oidc.roles.",
            )
        return self.operators.operator(name, max(roles, key=lambda role: role.rank), subject)

    def _set_cookie(self, text: str, age_s: int) -> str:
        # Lax: the browser comes back from another site.
        return cookie_text(self._cookie, text, age_s, same_site="Lax", secure=self._secure)

    def _refusal(self, refused: SignInRefusedError) -> web.Response:
        text = _PAGE.format(message=html.escape(str(refused)), url=html.escape(self._url))
        return web.Response(
            status=refused.status, text=text, content_type="text/html", charset="utf-8", headers=PAGE_HEADERS
        )


def code_flow(oidc: OidcSettings, public_url: str) -> CodeFlow:
    """The flow with these settings. Raises SettingsError for a certificate's file."""
    return CodeFlow(
        document_client(oidc, "admin.oidc"),
        issuer=oidc.issuer, client_id=oidc.client_id, client_secret=oidc.client_secret,
        redirect_uri=f"{public_url}{CALLBACK}",
    )  # fmt: skip


def _parameters(request: web.BaseRequest) -> dict[str, str]:
    """The parameters of the query that are given once."""
    try:
        found = parse_qs(request.raw_path.partition("?")[2], max_num_fields=50)
    except ValueError:
        return {}
    return {name: values[0] for name, values in found.items() if len(values) == 1}


def _secrets(key: bytes, cookie: str) -> FlowSecrets:
    return FlowSecrets(*(_derived(key, f"{use} {cookie}").hex() for use in ("state", "nonce", "verifier")))


def _key(oidc: OidcSettings, pepper: bytes) -> bytes:
    """The secret of sign-ins and sessions: equal on all proxies with these settings, so that a change ends sessions."""
    settings = [
        oidc.issuer, oidc.client_id, oidc.client_secret.reveal(), oidc.name_claim, oidc.role_claim,
        sorted(oidc.roles.items()), sorted(oidc.email_domains),
    ]  # fmt: skip
    return _derived(pepper, f"operators' sign-in {json.dumps(settings)}")


def _derived(key: bytes, use: str) -> bytes:
    return hmac.new(key, use.encode("utf-8", "replace"), hashlib.sha256).digest()


def _redirect(location: str) -> web.Response:
    return web.Response(status=302, headers={**HEADERS, "Location": location})
