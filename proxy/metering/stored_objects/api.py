"""The definition of an API for objects that a provider keeps: files, and batches of requests.

Invariants: only listed operations have routes. No operation is an exchange; the output of a batch is metered line by
line, by the dialect of the line's endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from proxy.metering.dialect import Dialect, KeyHeader
from proxy.metering.refusal import ErrorShape
from proxy.metering.request import InvalidField


class Operation(NamedTuple):
    """Operations on the objects, or on one of them."""

    name: str
    method: str
    after: str | None
    """the end of the path, after the id; None: the operation has no id"""


class Order(StrEnum):
    """order of a list by the time of creation"""

    NEWEST_FIRST = "desc"
    OLDEST_FIRST = "asc"


class PageAsked(NamedTuple):
    """The requested page of a list."""

    limit: int
    after: str | None = None
    """the id of the last object before the page, in the order of the list"""
    before: str | None = None
    """the id of the first object after the page"""
    order: Order = Order.NEWEST_FIRST
    purpose: str | None = None
    """purpose of the listed files; None: any"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectApi:
    """One kind of object, at one family of providers."""

    name: str
    """family and kind: `openai.files`"""
    path: str
    """path for clients; the path of one object adds its id"""
    upstream_path: str
    """path to append to a provider's base URL"""
    operations: tuple[Operation, ...]
    """operations, those with a longer end of the path first"""
    errors: ErrorShape
    key_header: KeyHeader = KeyHeader.AUTHORIZATION
    headers_up: tuple[str, ...] = ()
    own_headers: tuple[tuple[str, str], ...] = ()
    """headers of requests that the proxy sends by itself"""
    headers_down: tuple[str, ...] = ()
    query: tuple[str, ...] = ()
    """query parameters that are forwarded in all operations"""
    page_asked: Callable[[Mapping[str, str]], PageAsked]
    """reads the query of a list. Raises InvalidField"""
    page: Callable[[list[msgspec.Raw], list[str], bool], dict[str, Any]]
    """makes the document of a list from objects, their ids, and whether there are more"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileApi(ObjectApi):
    """An API for files."""

    fields: Mapping[str, bool]
    """the fields of an upload other than `file` → whether they are required"""
    purposes: tuple[str, ...] = ()
    """the values of the field `purpose`; empty: there is no such field"""


class BatchStatus(NamedTuple):
    """The fields of a batch object that are read."""

    batch_id: str
    word: str
    """the provider's own name of the state"""
    ended: bool
    """generation has ended, and all results are available"""
    created_at: float
    """Unix seconds by the provider's clock"""
    ended_at: float | None = None
    """Unix seconds by the provider's clock"""
    lines: int | None = None
    """the number of requests; None: not reported yet"""
    input_file: str | None = None
    files: tuple[str, ...] = ()
    """ids of the files with results; empty: there are none, or results have a path of their own"""


class ResultLine(NamedTuple):
    """One line of results."""

    custom_id: str | None
    """the client's name of the line, repeated by the provider; None: no name that can be kept"""
    answer: bytes | None
    """the body of a successful answer; None: nothing is billed"""
    failed: str | None = None
    """reason why nothing is billed, or why the unreadable answer is billed by its size"""

    @classmethod
    def unreadable(cls, line: bytes) -> ResultLine:
        """A line that is not as documented: it may hold an answer."""
        return cls(None, line, "unreadable_line")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchApi(ObjectApi):
    """An API for batches."""

    endpoints: Mapping[str, Dialect]
    """the endpoints that lines may name → their dialects"""
    lines_max: int
    """most requests of one batch, by the provider's documentation"""
    status: Callable[[bytes], BatchStatus | None]
    """reads a batch object; None: it is no batch"""
    line: Callable[[bytes], ResultLine]
    """reads one line of results"""
    cursor: str
    """the query parameter of a list with the last id of the previous page"""
    shown: Callable[[bytes], bytes] = bytes
    """turns a batch object into the client's version of it"""
    results_after: str | None = None
    """the end of the path of the results; None: results are in files"""


# OpenAI states no limit and Anthropic 64 characters; the name is stored in an entry.
CUSTOM_ID_CHARS_MAX = 256


def custom_id_of(value: object) -> str | None:
    """The client's name of a line; None: it cannot be kept."""
    good = isinstance(value, str) and 0 < len(value) <= CUSTOM_ID_CHARS_MAX and value.isprintable()
    return str(value) if good else None


# Each object is a request to its provider.
PAGE_MAX = 50


def page_limit(query: Mapping[str, str], *, default: int, at_most: int) -> int:
    """The number of objects on a page: at most PAGE_MAX, also if more are requested. Raises InvalidField."""
    text = query.get("limit", str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX and 1 <= int(text) <= at_most):
        raise InvalidField("limit", f"must be an integer from 1 to {at_most}")
    return min(int(text), PAGE_MAX)


_DIGITS_MAX = 6

CREATE = Operation("create", "POST", None)
LIST = Operation("list", "GET", None)
RETRIEVE = Operation("retrieve", "GET", "")
DELETE = Operation("delete", "DELETE", "")
CANCEL = Operation("cancel", "POST", "/cancel")
CONTENT = Operation("content", "GET", "/content")
RESULTS = Operation("results", "GET", "/results")
