"""The table of what the console answers. Law: a route is one line, and its line is all there is: who may, what is read,
what is answered, what the document says.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import msgspec
from aiohttp import web

from proxy.billing.money import usd_text
from proxy.console.api.reading import read_json, read_query
from proxy.console.api.sessions import Session, Sessions, operator_only
from proxy.http.connection import ClientConnection
from proxy.http.errors import JSON_TYPE, ApiError, overloaded
from proxy.http.headers import SERVER
from proxy.http.server import Routes, Serve
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
"""of every answer, unless it says otherwise itself"""

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_ENCODER = msgspec.json.Encoder(decimal_format="number")  # money as a number is exact to the last digit


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A query without fields."""


class Problem(msgspec.Struct, frozen=True):
    """What was wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class Refusal(msgspec.Struct, frozen=True):
    """Every answer of 400 or above, as OpenAI's SDKs understand it."""

    error: Problem


@dataclass(frozen=True, slots=True)
class Call:
    """A request that was read."""

    request: web.BaseRequest
    who: Session
    query: Any
    body: Any
    named: str
    """the name in its path"""


@dataclass(frozen=True, slots=True)
class Reply:
    """What is answered."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One line of the table."""

    method: str
    path: str
    """with one `{name}` in it at most"""
    summary: str
    serve: Callable[[Call], Awaitable[Reply | web.StreamResponse]]
    answers: Mapping[int, Any]
    """status below 400 → its type; every route may refuse"""
    query: type[msgspec.Struct] = Nothing
    body: type[msgspec.Struct] | None = None
    operator: bool = False
    """a key may not"""

    @property
    def placeholder(self) -> str | None:
        """The name that stands in its path."""
        found = _PLACEHOLDER.search(self.path)
        return None if found is None else found[1]


def act(
    path: str, summary: str, serve: Callable[[Call], Awaitable[Reply]], body: type[msgspec.Struct], made: Any
) -> Endpoint:
    """What only operators may do: a POST that is answered with what came of it."""
    return Endpoint(
        method="POST", path=path, summary=summary, serve=serve, body=body, answers={200: made}, operator=True
    )


def add(routes: Routes, endpoint: Endpoint, sessions: Sessions) -> None:
    """Answer it there, for whom these sessions know."""
    name = endpoint.placeholder
    if name is None:
        routes.local(endpoint.method, endpoint.path, _serving(endpoint, sessions, ""))
        return
    before, _, after = endpoint.path.partition(f"{{{name}}}")
    routes.named(endpoint.method, before, after, lambda named: _serving(endpoint, sessions, named))


def _serving(endpoint: Endpoint, sessions: Sessions, named: str) -> Serve:
    async def serve(request: web.BaseRequest, _connection: ClientConnection) -> web.StreamResponse:
        who = await sessions.of(request)
        if endpoint.operator and who.key is not None:
            raise operator_only()
        query = read_query(request, endpoint.query)
        body = None if endpoint.body is None else await read_json(request, endpoint.body)
        try:
            found = await endpoint.serve(Call(request, who, query, body, named))
        except ExecutorFull:
            raise overloaded("Too many questions are waiting for the ledger.", code="console_busy") from None
        except OSError:
            raise unavailable() from None
        return found if isinstance(found, web.StreamResponse) else answer(found)

    return serve


def answer(reply: Reply) -> web.Response:
    """As HTTP."""
    headers = {**HEADERS, **reply.headers}
    return web.Response(status=reply.status, body=encoded(reply.body), content_type=JSON_TYPE, headers=headers)


def encoded(body: Any) -> bytes:
    """As JSON."""
    return _ENCODER.encode(body)


def unavailable() -> ApiError:
    """503: the ledger, or what counts budgets, cannot be asked now."""
    return overloaded("The ledger cannot be asked now.", code="ledger_unavailable")


def usd_number(nusd: int) -> Decimal:
    """nUSD → USD, exact."""
    return Decimal(usd_text(nusd))
