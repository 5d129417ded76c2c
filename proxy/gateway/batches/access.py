"""Access control of files and batches.

Invariants: only the key that made an object, and keys of its project, can see it and its content. An error has the
format of the client's SDK.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qs

import msgspec
from aiohttp import web

from proxy.billing.batch import StoredBatch, StoredFile
from proxy.billing.keys import ApiKey
from proxy.gateway.authentication import Accepting, about_key, authenticated, refuse_byok
from proxy.gateway.batches.asking import after_of, is_id, request_to
from proxy.gateway.batches.asking import asked as answered
from proxy.gateway.batches.ports import BatchPorts
from proxy.gateway.batches.routes import spoken
from proxy.gateway.upstream.client import Answer, UpstreamClient
from proxy.gateway.upstream.provider import Provider
from proxy.http import errors
from proxy.http.connection import ClientConnection
from proxy.http.errors import JSON_TYPE, ApiError
from proxy.http.headers import downward
from proxy.http.json_body import shown_name
from proxy.http.reply import Reply
from proxy.http.request_body import read_body
from proxy.http.server import Serve
from proxy.keys.keyring import Keyring
from proxy.ledger.stored_objects.pages import UnknownCursorError
from proxy.metering.request import InvalidField
from proxy.metering.stored_objects.api import ObjectApi, Operation, PageAsked

# SDKs send one or two parameters.
QUERY_FIELDS_MAX = 20
# A request to cancel has no body; SDKs may send an empty object.
NO_BODY_BYTES_MAX = 16 * 1024

_T = TypeVar("_T")


class Asked(msgspec.Struct, frozen=True):
    """One request of a client."""

    api: ObjectApi
    key: ApiKey
    request: web.BaseRequest
    connection: ClientConnection
    object_id: str = ""


Handle = Callable[[Asked], Awaitable[web.StreamResponse]]


class Access:
    """Authenticates requests, and looks up objects."""

    def __init__(
        self, ports: BatchPorts, *, keys: Keyring, providers: Mapping[str, Provider], accepting: Accepting
    ) -> None:
        self.ports = ports
        self._keys = keys
        self._providers = providers
        self._accepting = accepting

    def serving(self, apis: Sequence[ObjectApi], operation: Operation, object_id: str | None, handle: Handle) -> Serve:
        """The handler of a route."""

        async def serve(request: web.BaseRequest, connection: ClientConnection) -> web.StreamResponse:
            api = spoken(apis, request.headers)
            try:
                return await self._serve(api, operation, object_id, handle, request, connection)
            except ApiError as refusal:
                refusal.shape = api.errors
                raise

        return serve

    async def _serve(
        self,
        api: ObjectApi,
        operation: Operation,
        object_id: str | None,
        handle: Handle,
        request: web.BaseRequest,
        connection: ClientConnection,
    ) -> web.StreamResponse:
        if request.method == "HEAD":
            raise errors.method_not_allowed("HEAD", (operation.method,))
        self._accepting.check()
        key = await authenticated(self._keys, request)
        try:
            return await self._served(api, operation, object_id, handle, request, connection, key)
        except ApiError as refusal:
            refusal.about = about_key(key, request.path)
            raise

    async def _served(
        self,
        api: ObjectApi,
        operation: Operation,
        object_id: str | None,
        handle: Handle,
        request: web.BaseRequest,
        connection: ClientConnection,
        key: ApiKey,
    ) -> web.StreamResponse:
        refuse_byok(key, "A file or a batch")
        if not key.uses_stored:
            raise errors.stored_not_allowed()
        if object_id is not None and "/" in object_id:  # no id has one: another operation, which is not served
            raise errors.unknown_route(request.method, request.raw_path.partition("?")[0])
        if operation.method != "GET" and operation.after is not None:
            await body_of(request, NO_BODY_BYTES_MAX)
        return await handle(Asked(api, key, request, connection, object_id or ""))

    async def stored(self, call: Callable[..., _T], *arguments: Any) -> _T:
        """The result of a call to the database. Raises ApiError if it is unavailable."""
        try:
            result: _T = await self.ports.in_thread(call, *arguments)
        except UnknownCursorError as unknown:
            raise errors.unknown_object("object", str(unknown)) from None
        except OSError:
            raise errors.objects_unknown() from None
        return result

    async def file(self, asked: Asked) -> tuple[StoredFile, Provider]:
        """The file of a request, and its provider. Raises ApiError if it does not exist for this key."""
        file_id = asked.object_id
        found = await self.stored(self.ports.files.find, [file_id]) if is_id(file_id) else {}
        file = found.get(file_id)
        if file is None or file.api != asked.api.name or not asked.key.shares(file.key_id, file.project_id):
            raise errors.unknown_object("file", file_id)
        return file, self.provider(file.provider)

    async def batch(self, asked: Asked) -> tuple[StoredBatch, Provider]:
        """The batch of a request, and its provider. Raises ApiError if it does not exist for this key."""
        batch_id = asked.object_id
        batch = await self.stored(self.ports.batches.find, batch_id) if is_id(batch_id) else None
        if batch is None or batch.api != asked.api.name or not asked.key.shares(batch.key_id, batch.project_id):
            raise errors.unknown_object("batch", batch_id)
        return batch, self.provider(batch.provider)

    def provider(self, name: str) -> Provider:
        """The provider of this name. Raises ApiError if it is not configured any more."""
        provider = self._providers.get(name)
        if provider is None:
            raise errors.upstream_failed()
        return provider

    async def files_at(
        self, key: ApiKey, file_ids: Collection[str], provider: str | None, *, param: str = "file_id"
    ) -> dict[str, StoredFile]:
        """The files that a request names. The key must own them, and `provider` store them, if it is given. Raises
        ApiError."""
        found = await self.stored(self.ports.files.find, [one for one in file_ids if is_id(one)])
        for file_id in file_ids:
            file = found.get(file_id)
            if file is None or not key.shares(file.key_id, file.project_id) or provider not in (None, file.provider):
                raise errors.unknown_file_named(file_id, param)
            if file.made_by is not None:
                raise errors.bad_request(f"{param}: '{file_id}' is a file of batch results", param=param)
        return found


async def body_of(request: web.BaseRequest, bytes_max: int, grew: Callable[[int], None] | None = None) -> bytes:
    """The body of a request. Raises ApiError."""
    try:
        if grew is None:
            return await read_body(request, bytes_max=bytes_max)
        return await read_body(request, bytes_max=bytes_max, grew=grew)
    except (web.RequestPayloadError, ConnectionError):
        raise errors.bad_request("The request body is incomplete.", code="incomplete_body") from None


def page_asked(asked: Asked) -> PageAsked:
    """The page of a list. Raises ApiError."""
    try:
        query = parse_qs(
            asked.request.raw_path.partition("?")[2], keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX
        )
    except ValueError:
        message = f"The query has more than {QUERY_FIELDS_MAX} parameters."
        raise errors.bad_request(message, code="invalid_query") from None
    for name, values in query.items():
        if not values[0].isprintable():  # Postgres refuses a NUL character
            param = shown_name(name)
            message = f"{param}: must have printable characters only"
            raise errors.bad_request(message, param=param, code="invalid_value")
    try:
        return asked.api.page_asked({name: values[0] for name, values in query.items()})
    except InvalidField as refusal:
        raise errors.bad_request(str(refusal), param=refusal.param, code="invalid_value") from None


async def answer_of(
    client: UpstreamClient, operation: Operation, asked: Asked, provider: Provider, credential: str | None
) -> Answer:
    """The provider's answer to an operation on the object of a request. Raises ApiError."""
    after = after_of(asked.object_id, operation.after)
    request = request_to(provider, asked.api, operation.method, after, credential=credential, client=asked.request)
    return await answered(client, provider, request)


def passed_on(asked: Asked, answer: Answer, provider: Provider, body: bytes, exchange_id: str = "") -> Reply:
    """The response to the client, with the provider's object."""
    reply = Reply(asked.request)
    headers = downward(
        answer.head,
        exchange_id,
        streamed=False,
        more=asked.api.headers_down,
        rules=provider.header_rules,
        own=asked.connection.headers,
    )
    plain = [(name, value) for name, value in headers if name.lower() != "content-encoding"]  # it was decoded
    reply.begin(answer.status, plain, length=len(body), body=body)
    return reply


def json_answer(document: dict[str, Any]) -> web.Response:
    """A JSON response of the proxy."""
    return web.Response(body=msgspec.json.encode(document), content_type=JSON_TYPE)
