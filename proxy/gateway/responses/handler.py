"""Relays requests about a stored response to the provider that made it.

Invariants: only the key that made a response can access it, or a key of its project, unless that is the default
project; for other keys the response does not exist. These requests are no exchanges: a response is billed by the
exchange that made it. While that exchange is open, it gets the progress that other clients read, and the response can
be deleted only after its end is recorded. The target consists of the dialect's path, the id, and the query names listed
here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple
from urllib.parse import quote, unquote

from aiohttp import web

from proxy.gateway.authentication import Accepting, authenticated, refuse_byok
from proxy.gateway.background.exchanges import STORING, BackgroundExchanges
from proxy.gateway.background.partial_result import partial_result
from proxy.gateway.background.progress_reports import PassiveMeter, ProgressReports
from proxy.gateway.background.stored_answer import CANCEL as CANCEL_PATH
from proxy.gateway.background.stored_answer import StoredAnswer, poll
from proxy.gateway.passing import passed
from proxy.gateway.resume.handler import ResumeHandler
from proxy.gateway.upstream.client import UpstreamClient
from proxy.gateway.upstream.failures import UpstreamFailedError
from proxy.gateway.upstream.provider import Provider
from proxy.http import errors
from proxy.http.connection import ClientConnection
from proxy.http.headers import upward
from proxy.http.request_body import read_body
from proxy.http.server import Routes, Serve
from proxy.keys.keyring import Keyring
from proxy.keys.response_owners import ResponseOwner, ResponseOwners
from proxy.metering.dialect import Dialect

# A request to cancel has no body; SDKs may send an empty object.
BODY_BYTES_MAX = 16 * 1024
# A stream of a billion events has no end.
EVENTS_DIGITS_MAX = 10

_ID = re.compile(r"[A-Za-z0-9_.:+@-]{1,256}", re.ASCII)
_VALUE = re.compile(r"[A-Za-z0-9_.~%+-]{0,200}", re.ASCII)


class Operation(NamedTuple):
    """A request about a stored response."""

    method: str
    after: str
    """the end of the path, after the id"""
    query: tuple[str, ...] = ()
    """names of the parameters that pass"""


CANCEL = Operation("POST", CANCEL_PATH)
DELETE = Operation("DELETE", "")
RETRIEVE = Operation("GET", "", ("include", "include[]", "include_obfuscation", "starting_after", "stream"))
# A longer end of the path comes first.
OPERATIONS = (
    CANCEL,
    Operation("GET", "/input_items", ("after", "before", "include", "include[]", "limit", "order")),
    RETRIEVE,
    DELETE,
)
SHOWING = (RETRIEVE, CANCEL)
"""operations whose answer is the response itself"""


def add_to(routes: Routes, serving: Callable[[Operation, str], Serve]) -> None:
    """Add the routes of all dialects whose providers store responses. `serving`: operation and id → handler."""
    for operation in OPERATIONS:
        for dialect in STORING.values():

            def of(response_id: str, operation: Operation = operation) -> Serve:
                return serving(operation, response_id)

            routes.named(operation.method, f"{dialect.endpoint}/", operation.after, of)


class ResponsesHandler:
    """Serves requests about stored responses."""

    def __init__(
        self,
        *,
        keys: Keyring,
        owners: ResponseOwners,
        providers: Mapping[str, Provider],
        client: UpstreamClient,
        accepting: Accepting,
        background: BackgroundExchanges,
        unix_time: Callable[[], float],
        resuming: ResumeHandler | None = None,
    ) -> None:
        """`resuming`: resumes streams from memory."""
        self._keys = keys
        self._owners = owners
        self._providers = providers
        self._client = client
        self._accepting = accepting
        self._reports = ProgressReports(background, owners)
        self._unix_time = unix_time
        self._resuming = resuming

    def add_to(self, routes: Routes) -> None:
        """Add the routes, after those of exchanges: some paths have a common beginning."""
        add_to(routes, self._serving)

    def _serving(self, operation: Operation, response_id: str) -> Serve:
        async def serve(request: web.BaseRequest, connection: ClientConnection) -> web.StreamResponse:
            return await self._serve(operation, response_id, request, connection)

        return serve

    async def _serve(
        self, operation: Operation, response_id: str, request: web.BaseRequest, connection: ClientConnection
    ) -> web.StreamResponse:
        """Serve one request. Raises ApiError."""
        if request.method == "HEAD":
            raise errors.method_not_allowed("HEAD", (operation.method,))
        self._accepting.check()
        key = await authenticated(self._keys, request)
        refuse_byok(key, "A stored response")
        if "/" in response_id:  # no id has one: another operation, which is not served
            raise errors.unknown_route(request.method, request.raw_path.partition("?")[0])
        owner = await self._owner(response_id) if _ID.fullmatch(response_id) else None
        provider = None if owner is None else self._providers.get(owner.provider)
        dialect = None if owner is None else STORING.get(owner.dialect)
        if owner is None or provider is None or dialect is None or not owner.shares_with(key):
            raise errors.unknown_response(response_id)
        if operation.method != "GET":
            await _ignored_body(request)
        if operation is RETRIEVE and self._resuming is not None and owner.key_id == key.key_id:
            number = _resumed_after(request)
            if number is not None:
                streamed = await self._resuming.response(owner.exchange_id, key, number, request, connection)
                if streamed is not None:
                    return streamed
        stored = _stored(operation, response_id, provider, dialect, owner, request)
        if operation is DELETE and owner.runs:
            await self._record_end(stored)
        return await self._passed(operation, stored, owner, request, connection)

    async def _owner(self, response_id: str) -> ResponseOwner | None:
        """The owner of a response; None: unknown. Raises ApiError if the store is unavailable."""
        try:
            return await self._owners.owner(response_id)
        except OSError:
            raise errors.responses_unknown() from None

    async def _passed(
        self,
        operation: Operation,
        stored: StoredAnswer,
        owner: ResponseOwner,
        request: web.BaseRequest,
        connection: ClientConnection,
    ) -> web.StreamResponse:
        """Send the request to the provider, and relay the answer. Raises ApiError."""
        provider = stored.provider
        head = stored.request(operation.method, operation.after, accepts=stored.dialect.accepts)
        try:
            async with asyncio.timeout(provider.limits.first_byte_s):
                answer = await self._client.ask(provider, head)
        except UpstreamFailedError as failure:
            raise failure.refusal() from None
        except TimeoutError:
            raise errors.upstream_stalled() from None
        good = 200 <= answer.status < 300
        try:
            if operation is DELETE and good:
                await self._owners.forget(stored.response_id)
            if not (owner.runs and good and operation in SHOWING):
                return await passed(answer, provider, owner.exchange_id, request, connection)
            meter = PassiveMeter(answer, stored.dialect, _events_before(request))
            passing = passed(answer, provider, owner.exchange_id, request, connection, meter.feed)
            return await self._reports.during(stored.response_id, meter, passing)
        finally:
            answer.close()

    async def _record_end(self, stored: StoredAnswer) -> None:
        """Record the usage of a background response before it is deleted: afterwards it cannot be requested. Raises
        ApiError, also if the response is still generated."""
        found = await poll(self._client, stored, self._unix_time())
        if found.gone:
            return
        if found.metered is None:
            raise errors.upstream_failed()
        if not found.metered.answer_ended:
            raise errors.response_running(stored.response_id)
        try:
            await self._reports.report(stored.response_id, partial_result(found.metered))
        except OSError:
            raise errors.responses_unknown() from None


async def _ignored_body(request: web.BaseRequest) -> None:
    try:
        await read_body(request, bytes_max=BODY_BYTES_MAX)
    except (web.RequestPayloadError, ConnectionError):
        raise errors.bad_request("The request body is incomplete.", code="incomplete_body") from None


def _stored(
    operation: Operation,
    response_id: str,
    provider: Provider,
    dialect: Dialect,
    owner: ResponseOwner,
    request: web.BaseRequest,
) -> StoredAnswer:
    return StoredAnswer(
        provider,
        dialect,
        response_id,
        owner.credential,
        query="&".join(_query(request.raw_path, (*operation.query, *dialect.query))),
        headers=upward(request.headers, dialect.headers_up, provider.header_rules),
    )


def _events_before(request: web.BaseRequest) -> int:
    """How many events a stream does not repeat: `starting_after` counts from 0."""
    after = request.query.get("starting_after", "")
    return int(after) + 1 if after.isascii() and after.isdigit() and len(after) < EVENTS_DIGITS_MAX else 0


def _resumed_after(request: web.BaseRequest) -> int | None:
    """The number of the last event that the client has, if it resumes the stream unchanged; -1: no event. None: another
    request."""
    query = request.query
    if query.get("stream") != "true" or not query.keys() <= {"stream", "starting_after"}:
        return None
    return _events_before(request) - 1


def _query(raw_path: str, names: tuple[str, ...]) -> Iterator[str]:
    """The query parameters that are relayed, with their values unchanged."""
    for part in raw_path.partition("?")[2].partition("#")[0].split("&"):
        name, _, value = part.partition("=")
        if unquote(name) in names and _VALUE.fullmatch(value) and part.isascii() and part.isprintable():
            yield f"{quote(unquote(name))}={value}"
