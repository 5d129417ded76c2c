"""The definition of an API for objects that a provider keeps: files, and batches of requests.

Invariants: only the operations that are listed have routes. None of them is an exchange of its own; what a batch
generates is metered line by line, by the dialect of the line's endpoint.
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
    """What can be asked of the objects, or of one of them."""

    name: str
    method: str
    after: str | None
    """the end of the path, after the id; None: it is about all objects, without an id"""


class Order(StrEnum):
    """Of a list, by the time of creation."""

    NEWEST_FIRST = "desc"
    OLDEST_FIRST = "asc"


class PageAsked(NamedTuple):
    """The page of a list that a client asks for."""

    limit: int
    after: str | None = None
    """the id of the last object before the page, in the order of the list"""
    before: str | None = None
    """the id of the first object behind the page"""
    order: Order = Order.NEWEST_FIRST
    purpose: str | None = None
    """of files; None: any"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectApi:
    """One kind of object, at one family of providers."""

    name: str
    """family and kind: `openai.files`"""
    path: str
    """for clients; an object's own path continues with its id"""
    upstream_path: str
    """to append to a provider's base URL"""
    operations: tuple[Operation, ...]
    """those with a longer end of the path first"""
    errors: ErrorShape
    key_header: KeyHeader = KeyHeader.AUTHORIZATION
    headers_up: tuple[str, ...] = ()
    own_headers: tuple[tuple[str, str], ...] = ()
    """of requests that no client asked for"""
    headers_down: tuple[str, ...] = ()
    query: tuple[str, ...] = ()
    """query parameters of all operations that go up"""
    page_asked: Callable[[Mapping[str, str]], PageAsked]
    """reads the query of a list. Raises InvalidField"""
    page: Callable[[list[msgspec.Raw], list[str], bool], dict[str, Any]]
    """objects, their ids, whether there are more → the document of a list"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileApi(ObjectApi):
    """Files."""

    fields: Mapping[str, bool]
    """the fields of an upload beside `file` → whether they are required"""
    purposes: tuple[str, ...] = ()
    """the values of the field `purpose`; empty: there is no such field"""


class BatchStatus(NamedTuple):
    """What a batch object says."""

    batch_id: str
    word: str
    """the provider's own word"""
    ended: bool
    """nothing is generated any more, and the results are all there"""
    created_at: float
    """Unix seconds by the provider's clock, as is the next one"""
    ended_at: float | None = None
    lines: int | None = None
    """the number of requests, once it is known"""
    input_file: str | None = None
    files: tuple[str, ...] = ()
    """the files with results; empty: there are none, or results have a path of their own"""


class ResultLine(NamedTuple):
    """One line of results."""

    custom_id: str | None
    """as the provider repeats it; None: there is none that can be kept"""
    answer: bytes | None
    """the body of a successful answer; None: nothing is billed"""
    failed: str | None = None
    """a word for why nothing is billed, or for why the answer cannot be read and is billed by its size"""

    @classmethod
    def unreadable(cls, line: bytes) -> ResultLine:
        """A line that is not as documented: there may be an answer in it."""
        return cls(None, line, "unreadable_line")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchApi(ObjectApi):
    """Batches."""

    endpoints: Mapping[str, Dialect]
    """the endpoints that lines may name → their dialects"""
    lines_max: int
    """of one batch, by the provider's documentation"""
    status: Callable[[bytes], BatchStatus | None]
    """reads a batch object; None: it is none"""
    line: Callable[[bytes], ResultLine]
    """reads one line of results"""
    cursor: str
    """the query parameter of a list with the last id of the page before"""
    shown: Callable[[bytes], bytes] = bytes
    """a batch object → as the proxy's clients see it"""
    results_after: str | None = None
    """the end of the path of the results; None: they are in files"""


# OpenAI states no limit and Anthropic 64 characters; the name stands in an entry.
CUSTOM_ID_CHARS_MAX = 256


def custom_id_of(value: object) -> str | None:
    """A client's name of a line, if it can be kept; None: it cannot."""
    good = isinstance(value, str) and 0 < len(value) <= CUSTOM_ID_CHARS_MAX and value.isprintable()
    return str(value) if good else None


# Each object is a request to its provider.
PAGE_MAX = 50


def page_limit(query: Mapping[str, str], *, default: int, at_most: int) -> int:
    """The number of objects on a page: at most PAGE_MAX, whatever is asked. Raises InvalidField."""
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
