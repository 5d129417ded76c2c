"""Entries as files for other programs. Law: every entry that is asked for is in it once, in the order in which they
were settled, up to one moment; memory does not grow with their number.

A set of columns says what is written, a writer says how: any set goes with any writer. Amounts are decimals, exact.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, auto
from itertools import islice
from typing import IO, Any

import msgspec

from proxy.billing.entries import ENTRY_FIELDS, TOKENS, LedgerEntry
from proxy.foundation.times import iso_utc
from proxy.ledger.accounts.owners import Owner
from proxy.reports.cells import plain

# Some MB of memory; and what a Parquet reader takes at a time.
ROWS_AT_ONCE = 5_000


class ColumnType(Enum):
    """What stands in a column."""

    TEXT = auto()
    COUNT = auto()
    NUMBER = auto()
    """a float"""
    MONEY = auto()
    """nUSD here, USD in the file"""
    DECIMAL = auto()
    """a whole number that a reader expects as a decimal"""
    TIME = auto()
    """Unix seconds here, UTC in the file"""
    SECOND = auto()
    """the same, to the second"""
    FLAG = auto()
    JSON = auto()


@dataclass(frozen=True, slots=True)
class ExportedEntry:
    """An entry, and what is known beside it."""

    entry: LedgerEntry
    settled_at: float
    owner: Owner | None
    """None: neither a key nor an account that there is"""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a file."""

    name: str
    kind: ColumnType
    of: Callable[[ExportedEntry], Any]


class ParquetMissing(ValueError):  # noqa: N818  no error of ours
    """Nothing here can write Parquet."""


def _field(name: str) -> Callable[[ExportedEntry], Any]:
    return lambda source: getattr(source.entry, name)


_KINDS = {
    "streamed": ColumnType.FLAG,
    "cost_usd": ColumnType.MONEY,
    "charge_usd": ColumnType.MONEY,
    "started_at": ColumnType.TIME,
    "first_token_ms": ColumnType.NUMBER,
    "duration_ms": ColumnType.NUMBER,
    "details": ColumnType.JSON,
    **dict.fromkeys((*TOKENS, "events", "bytes", "seq"), ColumnType.COUNT),
}

ENTRIES: tuple[Column, ...] = (
    *(Column(name, _KINDS.get(name, ColumnType.TEXT), _field(name)) for name in ENTRY_FIELDS),
    Column("settled_at", ColumnType.TIME, lambda source: source.settled_at),
    Column("project_id", ColumnType.TEXT, lambda source: source.owner and source.owner.project_id),
    Column("organization_id", ColumnType.TEXT, lambda source: source.owner and source.owner.organization_id),
)
"""every field of an entry, when it was settled, and whose its key is"""

Write = Callable[[IO[bytes], Sequence[Column], Iterable[ExportedEntry]], None]
"""columns and rows → a file"""


def write_csv(file: IO[bytes], columns: Sequence[Column], sources: Iterable[ExportedEntry]) -> None:
    """UTF-8 with a line of names; nothing between two commas is null."""
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=False)
    try:
        table = csv.writer(text, lineterminator="\r\n")
        table.writerow([column.name for column in columns])
        shown = [(_CSV[column.kind], column.of) for column in columns]
        for source in sources:
            values = ((show, of(source)) for show, of in shown)
            table.writerow(["" if value is None else show(value) for show, value in values])
    finally:
        text.detach()


def write_parquet(file: IO[bytes], columns: Sequence[Column], sources: Iterable[ExportedEntry]) -> None:
    """Money as decimals with 9 places, times in UTC to the microsecond. Raises ParquetMissing."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ParquetMissing("parquet: needs the package pyarrow (pip install 'tokenweir[parquet]')") from None
    types = {
        ColumnType.TEXT: pyarrow.string(),
        ColumnType.JSON: pyarrow.string(),
        ColumnType.COUNT: pyarrow.int64(),
        ColumnType.NUMBER: pyarrow.float64(),
        ColumnType.FLAG: pyarrow.bool_(),
        ColumnType.MONEY: pyarrow.decimal128(24, 9),
        ColumnType.DECIMAL: pyarrow.decimal128(24, 9),
        ColumnType.TIME: pyarrow.timestamp("us", tz="UTC"),
        ColumnType.SECOND: pyarrow.timestamp("us", tz="UTC"),
    }
    schema = pyarrow.schema([(column.name, types[column.kind]) for column in columns])
    rest = iter(sources)
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        while some := list(islice(rest, ROWS_AT_ONCE)):
            of_each = ([_typed(column.kind, column.of(source)) for source in some] for column in columns)
            arrays = [pyarrow.array(values, one.type) for one, values in zip(schema, of_each, strict=True)]
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))


def with_owners(
    settled: Iterable[tuple[LedgerEntry, float]], owners_of: Callable[[set[str]], dict[str, Owner]]
) -> Iterator[ExportedEntry]:
    """Entries with their owners, of which some hundreds are asked for at once."""
    rest = iter(settled)
    while some := list(islice(rest, ROWS_AT_ONCE)):
        owners = owners_of({entry.key_id for entry, _ in some})
        for entry, settled_at in some:
            yield ExportedEntry(entry, settled_at, owners.get(entry.key_id))


def usd(nusd: int) -> Decimal:
    """nUSD → USD, exact."""
    return Decimal(nusd).scaleb(-9)


def _json_text(value: Any) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


def _second(unix_s: float) -> str:
    return f"{iso_utc(unix_s)[:19]}Z"


_CSV: dict[ColumnType, Callable[[Any], str]] = {
    ColumnType.TEXT: plain,
    ColumnType.COUNT: str,
    ColumnType.NUMBER: repr,
    ColumnType.MONEY: lambda nusd: f"{usd(nusd):f}",
    ColumnType.DECIMAL: str,
    ColumnType.TIME: iso_utc,
    ColumnType.SECOND: _second,
    ColumnType.FLAG: lambda flag: "true" if flag else "false",
    ColumnType.JSON: _json_text,
}


def _typed(kind: ColumnType, value: Any) -> Any:
    """As Parquet takes it."""
    if value is None:
        return None
    if kind is ColumnType.MONEY:
        return usd(value)
    if kind is ColumnType.DECIMAL:
        return Decimal(value)
    if kind in (ColumnType.TIME, ColumnType.SECOND):
        return round(value * 1e6)
    return _json_text(value) if kind is ColumnType.JSON else value
