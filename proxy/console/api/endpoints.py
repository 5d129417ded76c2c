"""The console's routes.

Invariant: one `Endpoint` defines all of a route: access, query, body, answers and documentation.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import msgspec
from aiohttp import web

from proxy.billing.money import Nusd, usd_text
from proxy.console.api.reading import read_json, read_query
from proxy.console.api.sessions import ConsoleSession, Sessions
from proxy.console.caller_threads import called_by
from proxy.http.connection import ClientConnection
from proxy.http.errors import JSON_TYPE, ApiError, overloaded
from proxy.http.headers import SERVER
from proxy.http.server import Routes, Serve
from proxy.settings.operators import OperatorRole
from proxy.storage.executor import ExecutorFull

HEADERS: Mapping[str, str] = {
    **dict((SERVER,)),
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""default headers of every answer"""

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_ENCODER = msgspec.json.Encoder(decimal_format="number")  # decimals as JSON numbers, all digits kept


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A query or a body without fields."""


class Problem(msgspec.Struct, frozen=True):
    """The error."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class Refusal(msgspec.Struct, frozen=True):
    """An error answer (status 400 or above) in OpenAI's format."""

    error: Problem


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A validated request."""

    request: web.BaseRequest
    session: ConsoleSession
    query: Any
    body: Any
    named: str
    """value of the path parameter"""


@dataclass(frozen=True, slots=True)
class ApiReply:
    """An answer."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One route."""

    method: str
    path: str
    """path with at most one `{parameter}`"""
    summary: str
    serve: Callable[[ApiCall], Awaitable[ApiReply | web.StreamResponse]]
    answers: Mapping[int, Any]
    """status below 400 → body type; every route may also answer `Refusal`"""
    query: type[msgspec.Struct] = Nothing
    body: type[msgspec.Struct] | None = None
    role: OperatorRole | None = None
    """the role that an operator needs at least; None: keys may call it, too"""
    other_types: Sequence[str] = ()
    """media types that the body of a 200 may have, in place of JSON"""

    @property
    def placeholder(self) -> str | None:
        """The name of the path parameter."""
        found = _PLACEHOLDER.search(self.path)
        return None if found is None else found[1]


def operation(
    path: str,
    summary: str,
    serve: Callable[[ApiCall], Awaitable[ApiReply]],
    body: type[msgspec.Struct],
    result: Any,
    role: OperatorRole = OperatorRole.OPERATE,
) -> Endpoint:
    """A POST for operators."""
    return Endpoint(method="POST", path=path, summary=summary, serve=serve, body=body, answers={200: result}, role=role)


def add(routes: Routes, endpoint: Endpoint, sessions: Sessions) -> None:
    """Adds the route; `sessions` authenticates its requests."""
    name = endpoint.placeholder
    if name is None:
        routes.local(endpoint.method, endpoint.path, _serving(endpoint, sessions, ""))
        return
    before, _, after = endpoint.path.partition(f"{{{name}}}")
    routes.named(endpoint.method, before, after, lambda named: _serving(endpoint, sessions, named))


def _serving(endpoint: Endpoint, sessions: Sessions, named: str) -> Serve:
    async def serve(request: web.BaseRequest, _connection: ClientConnection) -> web.StreamResponse:
        session = await sessions.of(request)
        if endpoint.role is not None:
            session.check_role(endpoint.role)
        query = read_query(request, endpoint.query)
        body = None if endpoint.body is None else await read_json(request, endpoint.body)
        try:
            with called_by(is_key=session.key is not None):
                reply = await endpoint.serve(ApiCall(request, session, query, body, named))
        except ExecutorFull:
            raise overloaded("Too many console requests; try again later.", code="console_busy") from None
        except OSError:
            raise unavailable() from None
        if isinstance(reply, web.StreamResponse):
            return reply
        response = answer(reply)
        sessions.renew(session, request, response)
        return response

    return serve


def add_session(
    routes: Routes,
    me: Callable[[ApiCall], Awaitable[ApiReply]],
    sessions: Sessions,
    oidc: Mapping[str, str] | None = None,
) -> None:
    """Adds the routes that begin and end an operator's session. `me`: describes the caller. `oidc`: label and URL of
    the sign-in by the identity provider."""

    async def sign_in(request: web.BaseRequest, _connection: ClientConnection) -> web.StreamResponse:
        session = await sessions.of(request)
        response = answer(await me(ApiCall(request, session, Nothing(), None, "")))
        sessions.sign_in(session, request, response)
        return response

    async def sign_out(request: web.BaseRequest, _connection: ClientConnection) -> web.StreamResponse:
        response = web.Response(status=204, headers=HEADERS)
        sessions.sign_out(request, response)
        return response

    async def ways(_request: web.BaseRequest, _connection: ClientConnection) -> web.StreamResponse:
        return answer(ApiReply({"object": "sign_in", "oidc": oidc}))

    routes.local("GET", "/v1/session", ways)
    routes.local("POST", "/v1/session", sign_in)
    routes.local("DELETE", "/v1/session", sign_out)


def answer(reply: ApiReply) -> web.Response:
    """The HTTP response of a reply."""
    headers = {**HEADERS, **reply.headers}
    return web.Response(status=reply.status, body=encoded(reply.body), content_type=JSON_TYPE, headers=headers)


def encoded(body: Any) -> bytes:
    """JSON bytes."""
    return _ENCODER.encode(body)


def unavailable() -> ApiError:
    """503: the ledger or the budget store is unavailable."""
    return overloaded("The ledger is unavailable now; try again later.", code="ledger_unavailable")


def usd_number(nusd: Nusd) -> Decimal:
    """nUSD → USD, exact."""
    return Decimal(usd_text(nusd))
