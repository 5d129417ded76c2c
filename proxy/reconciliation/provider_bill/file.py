"""From the bytes of a provider's export to what it says: one page, a list of pages, or a page on each line.

Law: memory is bounded by the longest document, of a file of lines by its longest line. A bucket that is there twice is
refused: counted twice it would be a difference that nobody can find.
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

# A month of hours, of hundreds of models and projects, is a tenth of it.
DOCUMENT_BYTES_MAX = 32 << 20

_SHAPES = (bill_openai, bill_anthropic)
_DECODER = msgspec.json.Decoder(float_hook=Decimal)


def read_bill(file: BinaryIO, *, since: float | None = None, until: float | None = None) -> Bill:
    """What the file says of the time from `since` to `until` (Unix seconds): buckets that are not whole within it are
    left out. Raises BillError, which begins with the place in the file.
    """
    bill = Bill()
    seen: set[int] = set()
    for page in _pages(file):
        bill.goes_on = page.has("has_more") and page.value["has_more"] is True
        bill.add(_wanted(_buckets(page, seen), since, until))
    return bill


def _wanted(buckets: list[Bucket], since: float | None, until: float | None) -> Iterator[Bucket]:
    for bucket in buckets:
        if (since is None or bucket.begin_s >= since) and (until is None or bucket.end_s <= until):
            yield bucket


def _buckets(page: JsonPath, seen: set[int]) -> list[Bucket]:
    buckets = []
    for place in page.field("data").items():
        shape = next((one for one in _SHAPES if one.is_bucket(place)), None)
        if shape is None:
            raise place.wrong("is no bucket: it has neither start_time (OpenAI) nor starting_at (Anthropic)")
        buckets.append(shape.bucket(place))
        mark = hash(msgspec.json.encode(place.value, order="sorted"))
        if mark in seen and buckets[-1].results:
            raise place.wrong("is there twice")
        seen.add(mark)
    return buckets


def _pages(file: BinaryIO) -> Iterator[JsonPath]:
    for document in _documents(file):
        if isinstance(document.value, list):
            yield from document.items()
        else:
            yield document


def _documents(file: BinaryIO) -> Iterator[JsonPath]:
    """A file whose first line is a whole document has one on each line."""
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
        raise BillError(f"{where}longer than {DOCUMENT_BYTES_MAX >> 20} MiB: put each page on a line of its own")
    try:
        return _DECODER.decode(text)
    except (msgspec.DecodeError, ArithmeticError, RecursionError, ValueError) as error:
        raise BillError(f"{where}is not JSON: {error}") from None
