"""Anthropic's files and batches of messages.

Sources: the types of Anthropic's SDK; https://platform.claude.com/docs/en/build-with-claude/batch-processing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from proxy.metering.dialect import KeyHeader
from proxy.metering.dialects.anthropic.messages import ANTHROPIC_ERRORS, ANTHROPIC_MESSAGES
from proxy.metering.request import InvalidField
from proxy.metering.stored_objects.api import (
    CANCEL,
    CONTENT,
    CREATE,
    DELETE,
    LIST,
    RESULTS,
    RETRIEVE,
    BatchApi,
    BatchStatus,
    FileApi,
    PageAsked,
    ResultLine,
    custom_id_of,
    page_limit,
)
from proxy.metering.tally import identifier, word
from proxy.metering.wire.json_reader import strict_reader

_CURSOR = "page_"
"""prefix of the cursor of a page of files"""


def _page_asked(query: Mapping[str, str]) -> PageAsked:
    limit = page_limit(query, default=20, at_most=1_000)
    after, before = query.get("after_id"), query.get("before_id")
    if after is not None and before is not None:
        raise InvalidField("before_id", "cannot be combined with after_id")
    return PageAsked(limit, after, before)


def _files_asked(query: Mapping[str, str]) -> PageAsked:
    for name in ("ids", "ids[]", "scope_id"):
        if name in query:
            raise InvalidField(name.removesuffix("[]"), "is not supported")
    asked = _page_asked(query)
    if (cursor := query.get("page")) is None:
        return asked
    if not cursor.startswith(_CURSOR):
        raise InvalidField("page", "must be the next_page of an earlier list")
    return asked._replace(after=cursor.removeprefix(_CURSOR))


def _page(objects: list[msgspec.Raw], ids: list[str], more: bool) -> dict[str, Any]:
    first, last = (ids[0], ids[-1]) if ids else (None, None)
    return {"data": objects, "has_more": more, "first_id": first, "last_id": last}


def _page_of_files(objects: list[msgspec.Raw], ids: list[str], more: bool) -> dict[str, Any]:
    return {**_page(objects, ids, more), "next_page": f"{_CURSOR}{ids[-1]}" if more and ids else None}


class _Batch(msgspec.Struct):
    id: str
    processing_status: str
    created_at: datetime
    request_counts: dict[str, int] = msgspec.field(default_factory=dict)
    ended_at: datetime | None = None


class _Result(msgspec.Struct):
    type: str = ""
    message: msgspec.Raw = msgspec.Raw(b"null")


class _Line(msgspec.Struct):
    custom_id: str | None = None
    result: _Result | None = None


_batch, _line = strict_reader(_Batch), strict_reader(_Line)


def status_of(body: bytes) -> BatchStatus | None:
    """Read a batch object."""
    batch = _batch(body)
    if batch is None or identifier(batch.id) is None:
        return None
    return BatchStatus(
        batch.id,
        word(batch.processing_status),
        ended=batch.processing_status == "ended",
        created_at=batch.created_at.timestamp(),
        ended_at=None if batch.ended_at is None else batch.ended_at.timestamp(),
        lines=sum(batch.request_counts.values()) or None,
    )


class _Linked(msgspec.Struct):
    id: str
    results_url: msgspec.Raw = msgspec.Raw(b"null")


_linked = msgspec.json.Decoder(_Linked).decode


def shown(body: bytes) -> bytes:
    """The batch object with the proxy's address of the results: SDKs send the key to `results_url`. All other bytes
    stay."""
    linked = _linked(body)
    url = bytes(linked.results_url)
    ours = f'"/v1/messages/batches/{linked.id}{RESULTS.after}"'.encode()
    return body if url == b"null" else body.replace(url, ours)


def line_of(line: bytes) -> ResultLine:
    """Read one line of results. An unreadable line may be an answer."""
    read = _line(line)
    if read is None:
        return ResultLine.unreadable(line)
    name, result = custom_id_of(read.custom_id), read.result
    if result is not None and bytes(result.message) != b"null":
        return ResultLine(name, bytes(result.message))
    return ResultLine(name, None, word(result.type) if result is not None and result.type else "no_answer")


_OF_ANTHROPIC: dict[str, Any] = {
    "errors": ANTHROPIC_ERRORS,
    "key_header": KeyHeader.X_API_KEY,
    "headers_up": ("anthropic-version", "anthropic-beta"),
    "own_headers": (("anthropic-version", "2023-06-01"),),
    "headers_down": ("request-id",),
    "query": ("beta",),
}

ANTHROPIC_FILES = FileApi(
    name="anthropic.files",
    path="/v1/files",
    upstream_path="/files",
    operations=(CREATE, LIST, CONTENT, RETRIEVE, DELETE),
    **_OF_ANTHROPIC,
    page_asked=_files_asked,
    page=_page_of_files,
    fields={"expires_in_seconds": False},
)

ANTHROPIC_BATCHES = BatchApi(
    name="anthropic.batches",
    path="/v1/messages/batches",
    upstream_path="/messages/batches",
    operations=(CREATE, LIST, CANCEL, RESULTS, RETRIEVE, DELETE),
    **_OF_ANTHROPIC,
    page_asked=_page_asked,
    page=_page,
    endpoints={ANTHROPIC_MESSAGES.endpoint: ANTHROPIC_MESSAGES},
    lines_max=100_000,
    cursor="after_id",
    status=status_of,
    line=line_of,
    shown=shown,
    results_after=RESULTS.after,
)
