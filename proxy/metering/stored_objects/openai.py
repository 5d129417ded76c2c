"""OpenAI's files and batches.

Sources: the types of OpenAI's SDK; https://developers.openai.com/api/docs/guides/batch for lines and states.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai.completions import OPENAI_COMPLETIONS
from proxy.metering.dialects.openai.plain import OPENAI_EMBEDDINGS, OPENAI_MODERATIONS
from proxy.metering.dialects.openai_responses.responses import OPENAI_RESPONSES
from proxy.metering.refusal import OPENAI_ERRORS
from proxy.metering.request import InvalidField
from proxy.metering.stored_objects.api import (
    CANCEL,
    CONTENT,
    CREATE,
    DELETE,
    LIST,
    RETRIEVE,
    BatchApi,
    BatchStatus,
    FileApi,
    Order,
    PageAsked,
    ResultLine,
    custom_id_of,
    page_limit,
)
from proxy.metering.tally import identifier, word
from proxy.metering.wire.json_reader import strict_reader

# States in which nothing is generated any more.
_ENDED = frozenset({"completed", "failed", "expired", "cancelled"})


def _page_asked(query: Mapping[str, str], *, default: int, at_most: int) -> PageAsked:
    order = query.get("order", Order.NEWEST_FIRST)
    if order not in tuple(Order):
        raise InvalidField("order", "must be asc or desc")
    limit = page_limit(query, default=default, at_most=at_most)
    return PageAsked(limit, query.get("after"), None, Order(order), query.get("purpose"))


def _page(objects: list[msgspec.Raw], ids: list[str], more: bool) -> dict[str, Any]:
    first, last = (ids[0], ids[-1]) if ids else (None, None)
    return {"object": "list", "data": objects, "first_id": first, "last_id": last, "has_more": more}


class _Counts(msgspec.Struct):
    total: int = 0
    completed: int = 0


class _Batch(msgspec.Struct):
    id: str
    status: str
    created_at: float
    input_file_id: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    completed_at: float | None = None
    failed_at: float | None = None
    expired_at: float | None = None
    cancelled_at: float | None = None
    request_counts: _Counts | None = None


class _Response(msgspec.Struct):
    status_code: int = 0
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Error(msgspec.Struct):
    code: str | None = None


class _Line(msgspec.Struct):
    custom_id: str | None = None
    response: _Response | None = None
    error: _Error | None = None


_batch, _line = strict_reader(_Batch), strict_reader(_Line)


def status_of(body: bytes) -> BatchStatus | None:
    """Read a batch object."""
    batch = _batch(body)
    if batch is None or identifier(batch.id) is None:
        return None
    counts = batch.request_counts or _Counts()
    results = tuple(one for one in (batch.output_file_id, batch.error_file_id) if one and identifier(one))
    return BatchStatus(
        batch.id,
        word(batch.status),
        # Completed requests without an output file yet: the file will follow.
        ended=batch.status in _ENDED and (batch.output_file_id is not None or not counts.completed),
        created_at=batch.created_at,
        ended_at=batch.completed_at or batch.failed_at or batch.expired_at or batch.cancelled_at,
        lines=counts.total or None,
        input_file=batch.input_file_id,
        files=results,
    )


def line_of(line: bytes) -> ResultLine:
    """Read one line of an output or error file. An unreadable line may be an answer."""
    read = _line(line)
    if read is None:
        return ResultLine.unreadable(line)
    name, response = custom_id_of(read.custom_id), read.response
    if response is not None and 200 <= response.status_code < 300 and bytes(response.body) != b"null":
        return ResultLine(name, bytes(response.body))
    if read.error is not None and read.error.code:
        return ResultLine(name, None, word(read.error.code))
    return ResultLine(name, None, "no_answer" if response is None else f"http_{response.status_code}")


OPENAI_FILES = FileApi(
    name="openai.files",
    path="/v1/files",
    upstream_path="/files",
    operations=(CREATE, LIST, CONTENT, RETRIEVE, DELETE),
    errors=OPENAI_ERRORS,
    page_asked=partial(_page_asked, default=10_000, at_most=10_000),
    page=_page,
    fields={"purpose": True, "expires_after[anchor]": False, "expires_after[seconds]": False},
    # Files for fine-tuning, evals and assistants are used by services that are not metered.
    purposes=("batch", "user_data", "vision"),
)

OPENAI_BATCHES = BatchApi(
    name="openai.batches",
    path="/v1/batches",
    upstream_path="/batches",
    operations=(CREATE, LIST, CANCEL, RETRIEVE),
    errors=OPENAI_ERRORS,
    page_asked=partial(_page_asked, default=20, at_most=100),
    page=_page,
    endpoints={
        dialect.endpoint: dialect
        for dialect in (OPENAI_CHAT, OPENAI_RESPONSES, OPENAI_EMBEDDINGS, OPENAI_COMPLETIONS, OPENAI_MODERATIONS)
    },
    lines_max=50_000,
    cursor="after",
    status=status_of,
    line=line_of,
)
