"""Serves requests about batches.

Invariant: the results of a batch are relayed only when the ledger has all its lines.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from aiohttp import web

from proxy.billing.batch import BatchInput, BatchState, StoredBatch
from proxy.billing.keys import ApiKey
from proxy.billing.limits import Scope
from proxy.foundation.long_bytes import copied
from proxy.foundation.slices import Slice, in_slices
from proxy.gateway.batches.access import Access, Asked, Handle, answer_of, body_of, page_asked, passed_on
from proxy.gateway.batches.asking import object_in
from proxy.gateway.batches.creating import BatchMaker, NewBatch
from proxy.gateway.batches.lines_in import LineChecker
from proxy.gateway.batches.listing import listed
from proxy.gateway.batches.settling import BatchSettler, NotReadableError
from proxy.gateway.exchange.uploads import Uploads
from proxy.gateway.passing import passed
from proxy.gateway.ports import RequestLimits
from proxy.gateway.upstream.client import UpstreamClient
from proxy.gateway.upstream.routing import Models
from proxy.http import errors
from proxy.http.json_body import CONTAINERS_MAX, parse_object, serialise, shown_name
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.stored_objects.api import CANCEL, CREATE, DELETE, LIST, RESULTS, RETRIEVE, BatchApi, Operation
from proxy.metering.wire.brackets import OPENING, Brackets

# Some ids, and 16 short members of metadata.
ORDER_BYTES_MAX = 64 * 1024
# A client waits for the ledger this long; then it must repeat the request.
WAIT_S = 60.0
# Results that are deleted sooner may be gone before they are in the ledger.
RESULTS_KEPT_S_MIN = 86_400
# OpenAI's only one.
WINDOW = "24h"

# Bytes of a body that are searched for requests at once: some milliseconds, if all of them are brackets.
PIECE_BYTES = 16 * 1024
# Bytes before and after the requests, most of them blanks: no program writes as many.
AROUND_BYTES_MAX = 64 * 1024
# The brackets of one request, by the limits of `parse_object` on arrays and objects.
BRACKETS_MAX = 2 * CONTAINERS_MAX + 1

_ARRAY_BEGINS = re.compile(rb'(?:\xef\xbb\xbf)?\s*+\{\s*+"requests"\s*+:\s*+\[')
_ARRAY_ENDS = re.compile(rb"\]\s*+\}\s*+")
_BLANKS = b" \t\r\n\v\f"
_FIELDS = ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after")


class BatchesHandler:
    """Serves requests about batches."""

    def __init__(
        self,
        access: Access,
        maker: BatchMaker,
        settler: BatchSettler,
        *,
        client: UpstreamClient,
        models: Models,
        estimator: Estimator,
        limits: RequestLimits,
        uploads: Uploads,
        scopes: Callable[[ApiKey], Sequence[Scope]],
    ) -> None:
        """`scopes`: the levels that limit a key."""
        self._access = access
        self._maker = maker
        self._settler = settler
        self._client = client
        self._models = models
        self._estimator = estimator
        self._limits = limits
        self._uploads = uploads
        self._scopes = scopes

    def handlers(self) -> Mapping[Operation, Handle]:
        """Operation → its handler."""
        return {
            CREATE: self._create,
            LIST: self._list,
            **{operation: partial(self._object, operation) for operation in (RETRIEVE, CANCEL)},
            **{operation: partial(self._after_settling, operation) for operation in (RESULTS, DELETE)},
        }

    async def settled(self, batch: StoredBatch) -> None:
        """Return when the ledger has the lines of a batch. Raises ApiError."""
        if batch.state is BatchState.SETTLED:
            return
        if batch.state is BatchState.LOST:
            raise errors.results_lost()
        try:
            async with asyncio.timeout(WAIT_S):
                ended = await self._settler.settle(batch)
        except (NotReadableError, TimeoutError):
            raise errors.results_unrecorded() from None
        except OSError:
            raise errors.objects_unknown() from None
        if not ended:
            raise errors.bad_request("The batch has not ended: it has no results yet.", code="batch_not_ended")

    # -- new ones

    async def _create(self, made_for: Asked) -> web.StreamResponse:
        if made_for.api.name == "openai.batches":
            return await self._maker.make(made_for, await self._of_file(made_for))
        upload = self._uploads.begin(made_for.key.key_id, self._scopes(made_for.key))
        try:
            body = await body_of(made_for.request, self._limits.body_bytes_max, upload.grew)
            upload.arrived()
            new = await self._of_requests(made_for, body)
            del body
            return await self._maker.make(made_for, new)
        finally:
            upload.free()

    async def _of_file(self, made_for: Asked) -> NewBatch:
        """Make a batch of OpenAI's kind: its lines are in a file, which was checked at its upload. Raises ApiError."""
        document = parse_object(await body_of(made_for.request, ORDER_BYTES_MAX))
        _check_order(document)
        file_id = document["input_file_id"]
        file = (await self._access.files_at(made_for.key, [file_id], None, param="input_file_id"))[file_id]
        if file.input is None:
            raise _invalid("input_file_id", "must be a file with the purpose batch")
        if document.get("endpoint") != file.input.endpoint:
            raise _invalid("endpoint", f"must be that of the requests in the file, {file.input.endpoint}")
        provider = self._access.provider(file.provider)
        return NewBatch(file.input, {}, provider, file.credential, file_id, [serialise(document)], document)

    async def _of_requests(self, made_for: Asked, body: bytes) -> NewBatch:
        """Make a batch of Anthropic's kind: its lines are in the request. Raises ApiError."""
        api = made_for.api
        assert isinstance(api, BatchApi)
        default = self._limits.reserve.completion_tokens
        checker = LineChecker(api, made_for.key, self._models, self._estimator, completion_tokens_default=default)
        (endpoint,) = api.endpoints
        written: list[bytes] = []
        number = 0
        async for start, end in _requests(body, checker.slice):
            where, size = f"requests[{number}]", end - start
            document = await in_slices(size, _line, body, start, end, where)
            sent = await checker.line(where, document["custom_id"], endpoint, document["params"], size)
            line = {"custom_id": document["custom_id"], "params": sent}
            written += (b"," if number else b'{"requests":[', await in_slices(size, serialise, line))
            number += 1
        written.append(b"]}")
        read: BatchInput = await checker.checked(self._access.files_at)
        provider = checker.provider
        return NewBatch(read, checker.names(), provider, provider.credential_now(), None, written, {})

    # -- those that there are

    async def _list(self, made_for: Asked) -> web.StreamResponse:
        wanted = page_asked(made_for)
        batches, more = await self._access.stored(
            self._access.ports.batches.page, made_for.api.name, made_for.key, wanted
        )
        by_id = {batch.batch_id or "": batch for batch in batches}
        places = [(batch_id, batch.provider, batch.credential) for batch_id, batch in by_id.items()]

        async def seen(batch_id: str, body: bytes) -> bytes:
            return await self._seen(by_id[batch_id], made_for, body)

        return await listed(self._access, self._client, made_for, places, more=more, seen=seen)

    async def _object(self, operation: Operation, made_for: Asked) -> web.StreamResponse:
        """An operation whose answer is the batch."""
        batch, provider = await self._access.batch(made_for)
        answer = await answer_of(self._client, operation, made_for, provider, batch.credential)
        if not 200 <= answer.status < 300:
            return await passed(answer, provider, batch.exchange_id, made_for.request, made_for.connection)
        body = await self._seen(batch, made_for, await object_in(answer, provider))
        return passed_on(made_for, answer, provider, body, batch.exchange_id)

    async def _after_settling(self, operation: Operation, made_for: Asked) -> web.StreamResponse:
        batch, provider = await self._access.batch(made_for)
        await self.settled(batch)
        answer = await answer_of(self._client, operation, made_for, provider, batch.credential)
        try:
            if operation is DELETE and 200 <= answer.status < 300:
                await self._access.stored(self._access.ports.batches.forget, batch.exchange_id)
            return await passed(answer, provider, batch.exchange_id, made_for.request, made_for.connection)
        finally:
            answer.close()

    async def _seen(self, batch: StoredBatch, made_for: Asked, body: bytes) -> bytes:
        """The object for the client. If the batch has ended, its files get its owner, and settling begins."""
        api = made_for.api
        assert isinstance(api, BatchApi)
        status = api.status(body)
        if status is None:
            raise errors.upstream_failed()
        if status.ended and batch.state is BatchState.RUNNING:
            if batch.files != status.files:
                try:
                    await self._settler.ended(batch, status)
                except OSError:
                    raise errors.objects_unknown() from None
            self._settler.begin(batch)
        return api.shown(body)


def _check_order(document: Mapping[str, Any]) -> None:
    """Check the members of a request for a batch of a file. Raises ApiError."""
    for name in document:
        if name not in _FIELDS:
            raise _invalid(shown_name(name), "is no field of a batch")
    for name in ("input_file_id", "endpoint"):
        if not isinstance(document.get(name), str):
            raise _invalid(name, "must be a string")
    if document.get("completion_window") != WINDOW:
        raise _invalid("completion_window", f"must be {WINDOW}")
    expires = document.get("output_expires_after")
    kept_s = expires.get("seconds") if isinstance(expires, dict) else None
    if expires is not None and (type(kept_s) is not int or kept_s < RESULTS_KEPT_S_MIN):
        raise _invalid("output_expires_after", f"seconds must be an integer from {RESULTS_KEPT_S_MIN} up")


async def _requests(body: bytes, current_slice: Slice) -> AsyncIterator[tuple[int, int]]:
    """Where each request begins and ends; other tasks run in between. Raises ApiError."""
    begins = _ARRAY_BEGINS.match(body, 0, AROUND_BYTES_MAX)
    if begins is None:
        raise _no_array()
    brackets = Brackets()
    request = after_last = begins.end()
    number = found = 0  # requests; the brackets of the one that has begun
    for offset in range(begins.end(), len(body), PIECE_BYTES):
        await current_slice.give_way()
        for at in brackets.feed(body[offset : offset + PIECE_BYTES]):
            found += 1
            if brackets.depth > 1 and found <= BRACKETS_MAX:
                continue
            at += offset
            if brackets.depth == 1 and body[at] in OPENING:
                await _check_between(body, after_last, at, current_slice, number, commas=1 if number else 0)
                request, found = at, 1
            elif brackets.depth == 0 or found > BRACKETS_MAX:  # too many: cut, and refused when it is parsed
                yield request, at + 1
                after_last, number = at + 1, number + 1
            elif brackets.depth < 0:
                await _check_between(body, after_last, at, current_slice, number, commas=0)
                if len(body) - at > AROUND_BYTES_MAX or _ARRAY_ENDS.fullmatch(body, at) is None:
                    raise _no_array()
                return
    raise _no_array()


async def _check_between(body: bytes, start: int, end: int, current_slice: Slice, number: int, *, commas: int) -> None:
    """Check the text before a request, or before the end of the array: blanks, and as many commas. Raises ApiError."""
    for at in range(start, end, PIECE_BYTES):
        await current_slice.give_way()
        marks = body[at : min(at + PIECE_BYTES, end)].translate(None, _BLANKS)
        if marks.strip(b","):
            raise _invalid(f"requests[{number}]", "must be an object")
        commas -= len(marks)
    if commas:
        raise _no_array()


def _no_array() -> errors.ApiError:
    return _invalid("requests", "must be an array, and the only member of a JSON object")


def _line(body: bytes, start: int, end: int, where: str) -> dict[str, Any]:
    """Parse one request. Raises ApiError."""
    if not body.startswith(b"{", start):
        raise _invalid(where, "must be an object")
    document = parse_object(copied(body, start, end))
    for name in document:
        if name not in ("custom_id", "params"):
            raise _invalid(f"{where}.{shown_name(name)}", "is no field of a request")
    for name in ("custom_id", "params"):
        if name not in document:
            raise _invalid(f"{where}.{name}", "is missing")
    return document


def _invalid(field: str, why: str) -> errors.ApiError:
    return errors.bad_request(f"{field}: {why}", param=field, code="invalid_value")
