"""Reads a provider's export: one page, a list of pages, or a page per line.

Invariants: memory is bounded by the longest document, in a file of lines by the longest line; a duplicate bucket is an
error, because counting it twice would be a difference without a cause.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, BinaryIO

import msgspec

from proxy.reconciliation.provider_bill import anthropic as bill_anthropic
from proxy.reconciliation.provider_bill import openai as bill_openai
from proxy.reconciliation.provider_bill.bill import Bill, BillError, Bucket, JsonPath

# Ten times a month of hourly buckets for hundreds of models and projects.
DOCUMENT_BYTES_MAX = 32 << 20

_SHAPES = (bill_openai, bill_anthropic)
_DECODER = msgspec.json.Decoder(float_hook=Decimal)


def read_bill(file: BinaryIO, *, since: float | None = None, until: float | None = None) -> Bill:
    """The bill in the file, from `since` to `until` (Unix seconds): only buckets that are wholly within. Raises
    BillError.
    """
    bill = Bill()
    seen: set[int] = set()
    for page in _pages(file):
        bill.goes_on = page.has("has_more") and page.value["has_more"] is True
        bill.add(_within(_buckets(page, seen), since, until))
    return bill


def _within(buckets: list[Bucket], since: float | None, until: float | None) -> Iterator[Bucket]:
    for bucket in buckets:
        if (since is None or bucket.begin_s >= since) and (until is None or bucket.end_s <= until):
            yield bucket


def _buckets(page: JsonPath, seen: set[int]) -> list[Bucket]:
    buckets = []
    for place in page.field("data").items():
        shape = next((one for one in _SHAPES if one.is_bucket(place)), None)
        if shape is None:
            raise place.wrong("is not a bucket: it has neither start_time (OpenAI) nor starting_at (Anthropic)")
        buckets.append(shape.bucket(place))
        digest = hash(msgspec.json.encode(place.value, order="sorted"))
        if digest in seen and buckets[-1].results:
            raise place.wrong("is a duplicate: the file has this bucket twice")
        seen.add(digest)
    return buckets


def _pages(file: BinaryIO) -> Iterator[JsonPath]:
    for document in _documents(file):
        if isinstance(document.value, list):
            yield from document.items()
        else:
            yield document


def _documents(file: BinaryIO) -> Iterator[JsonPath]:
    """A file whose first line is a whole document has one document per line."""
    first = file.readline(DOCUMENT_BYTES_MAX + 1).removeprefix(BOM_UTF8)
    try:
        document = _decoded(first)
    except BillError:
        rest = file.read(DOCUMENT_BYTES_MAX + 1 - len(first))
        yield JsonPath(_decoded(first + rest))
        return
    yield JsonPath(document)
    number = 1
    while line := file.readline(DOCUMENT_BYTES_MAX + 1):
        number += 1
        if line.strip():
            where = f"line {number}: "
            yield JsonPath(_decoded(line, where), where)


def _decoded(text: bytes, where: str = "") -> Any:
    if len(text) > DOCUMENT_BYTES_MAX:
        raise BillError(f"{where}is longer than {DOCUMENT_BYTES_MAX >> 20} MiB: put each page on its own line")
    try:
        return _DECODER.decode(text)
    except (msgspec.DecodeError, ArithmeticError, RecursionError, ValueError) as error:
        raise BillError(f"{where}is not JSON: {error}") from None
