"""Reads a provider's export: one page, a list of pages, or a page per line; or the lines saved by pull.py, each with
a page, its endpoint and the requested days: `{"path": …, "begin_s": …, "end_s": …, "page": …}`.

Invariants: memory is bounded by the longest document, in a file of lines by the longest line; a duplicate bucket is an
error, because counting it twice would be a difference without a cause.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, BinaryIO

import msgspec

from proxy.reconciliation.provider_bill import anthropic as bill_anthropic
from proxy.reconciliation.provider_bill import openai as bill_openai
from proxy.reconciliation.provider_bill.bill import DAY_S, BillBucket, BillEndpoint, BillError, JsonPath, ProviderBill

# Ten times a month of hourly buckets for hundreds of models and projects.
DOCUMENT_BYTES_MAX = 32 << 20

# More than a provider keeps of daily buckets; a longer period is a wrong date.
DAYS_MAX = 1_000

_SHAPES = (bill_openai, bill_anthropic)
_ENDPOINTS: Mapping[str, BillEndpoint] = {endpoint.path: endpoint for shape in _SHAPES for endpoint in shape.ENDPOINTS}
_DECODER = msgspec.json.Decoder(float_hook=Decimal)


def read_bill(file: BinaryIO, *, since: float | None = None, until: float | None = None) -> ProviderBill:
    """The bill in the file, from `since` to `until` (Unix seconds): only buckets that are wholly within. Raises
    BillError.
    """
    bill = ProviderBill()
    seen: set[int] = set()
    goes_on: dict[BillEndpoint | None, bool] = {}

    def within(begin_s: int, end_s: int) -> bool:
        return (since is None or begin_s >= since) and (until is None or end_s <= until)

    for place in _pages(file):
        page, endpoint, days = place, None, None
        if place.has("page"):
            endpoint, days = _endpoint(place.field("path")), _days(place)
            page = JsonPath(place.field("page").value, f"{place.path}{endpoint.path}: ")
            bill.request(endpoint, [(day_s, day_s + DAY_S) for day_s in days if within(day_s, day_s + DAY_S)])
        goes_on[endpoint] = page.has("has_more") and page.value["has_more"] is True
        buckets = (bucket for bucket in _buckets(page, seen) if within(bucket.begin_s, bucket.end_s))
        bill.add(bucket for bucket in buckets if days is None or bucket.begin_s - bucket.begin_s % DAY_S in days)
    bill.goes_on = any(goes_on.values())
    return bill


def _endpoint(path: JsonPath) -> BillEndpoint:
    endpoint = _ENDPOINTS.get(path.text())
    if endpoint is None:
        raise path.wrong("is not an endpoint whose pages are compared")
    return endpoint


def _days(place: JsonPath) -> range:
    """The beginnings of the requested days, in Unix seconds."""
    begin, end = place.field("begin_s"), place.field("end_s")
    begin_s, end_s = begin.count(), end.count()
    if begin_s % DAY_S or end_s % DAY_S or not 0 < end_s - begin_s <= DAYS_MAX * DAY_S:
        raise end.wrong(f"must be 1 to {DAYS_MAX} whole days (UTC) after begin_s")
    return range(begin_s, end_s, DAY_S)


def _buckets(page: JsonPath, seen: set[int]) -> list[BillBucket]:
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
