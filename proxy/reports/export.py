"""Export of entries to files for other programs.

Invariants:
- Each selected entry is in the file once, in the order of settlement.
- Memory does not grow with the number of entries.

A column set defines the content, a writer the file format; every set works with every writer. Amounts are exact
decimals.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum, auto
from functools import lru_cache
from operator import attrgetter
from typing import IO, Any

import msgspec

from proxy.billing.dimensions import NAMED, TAG
from proxy.billing.entries import STORED_NAMES, TOKENS, EntryKind, LedgerEntry
from proxy.billing.period import Closings, Month, month_of
from proxy.foundation.times import iso_utc
from proxy.ledger.accounts.owners import Owner
from proxy.ledger.settling.spend import batches

# A few MB of memory; also the size of a Parquet row group.
ROWS_AT_ONCE = 5_000


class ColumnType(Enum):
    """The type of a column's values."""

    TEXT = auto()
    COUNT = auto()
    NUMBER = auto()
    """a float"""
    MONEY = auto()
    """nUSD in the entry, USD in the file"""
    DECIMAL = auto()
    """a whole number or a Decimal, of at most 15 places"""
    TIME = auto()
    """Unix seconds in the entry, ISO 8601 or a UTC timestamp in the file"""
    SECOND = auto()
    """a time like TIME, to the second"""
    FLAG = auto()
    JSON = auto()


@dataclass(frozen=True, slots=True)
class ExportedEntry:
    """An entry with its settlement time and its owner."""

    entry: LedgerEntry
    settled_at: float
    """Unix seconds"""
    owner: Owner | None
    """None if the key or account does not exist"""
    closings: Closings = Closings()  # noqa: RUF009  it is immutable
    dimensions: Mapping[str, str] = field(default_factory=dict)
    """dimension of the exchange → value id, or value"""

    @property
    def month(self) -> Month:
        """The month whose statement has the entry."""
        return self.closings.posted_in(self.entry.kind, self.entry.started_at, self.settled_at)

    @property
    def tags(self) -> dict[str, str]:
        """The tags among the dimensions, by name."""
        return {name.removeprefix(TAG): value for name, value in self.dimensions.items() if name.startswith(TAG)}

    @property
    def is_late(self) -> bool:
        """True for usage of a month that was closed before the entry was settled."""
        return self.entry.kind == EntryKind.USAGE and self.month != month_of(self.entry.started_at)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a file."""

    name: str
    kind: ColumnType
    of: Callable[[Any], Any]
    """the column's value in a source: an ExportedEntry, a FocusRow or, in an archive, a row of the table"""


class ParquetMissing(ValueError):  # noqa: N818  a missing extra, no bug
    """The package pyarrow is not installed."""


KINDS = {
    "streamed": ColumnType.FLAG,
    "cost_usd": ColumnType.MONEY,
    "charge_usd": ColumnType.MONEY,
    "started_at": ColumnType.TIME,
    "first_token_ms": ColumnType.NUMBER,
    "duration_ms": ColumnType.NUMBER,
    "details": ColumnType.JSON,
    **dict.fromkeys((*TOKENS, "events", "bytes", "seq"), ColumnType.COUNT),
}
"""the types of an entry's columns that are not text"""


def _dimension(name: str) -> Callable[[ExportedEntry], str | None]:
    return lambda source: source.dimensions.get(name)


ENTRIES: tuple[Column, ...] = (
    *(
        Column(name, KINDS.get(name, ColumnType.TEXT), attrgetter(f"entry.{field}"))
        for field, name in STORED_NAMES.items()
    ),
    Column("settled_at", ColumnType.TIME, lambda source: source.settled_at),
    Column("project_id", ColumnType.TEXT, lambda source: source.owner and source.owner.project_id),
    Column("organization_id", ColumnType.TEXT, lambda source: source.owner and source.owner.organization_id),
    Column("statement_month", ColumnType.TEXT, lambda source: str(source.month)),
    *(Column(name, ColumnType.TEXT, _dimension(name)) for name in NAMED),
    Column("tags", ColumnType.JSON, lambda source: source.tags or None),
)
"""all entry fields, the settlement time, the project and organization of the key, the month whose statement has the
entry, and the dimensions of its exchange"""

Write = Callable[[IO[bytes], Sequence[Column], Iterable[Any]], None]
"""writes rows with these columns to a file"""


def write_csv(file: IO[bytes], columns: Sequence[Column], sources: Iterable[Any]) -> None:
    """CSV in UTF-8 with a header line; null is an empty cell."""
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=False)
    try:
        table = csv.writer(text, lineterminator="\r\n")
        table.writerow([column.name for column in columns])
        shown = [(_CSV[column.kind], column.of) for column in columns]
        for source in sources:
            table.writerow(["" if (value := of(source)) is None else show(value) for show, of in shown])
    finally:
        text.detach()


def require_parquet() -> None:
    """Check that the package pyarrow is installed. Raises ParquetMissing."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise ParquetMissing("parquet: the package pyarrow is missing (pip install 'tokenweir[parquet]')") from None


def write_parquet(file: IO[bytes], columns: Sequence[Column], sources: Iterable[Any]) -> None:
    """Parquet with money as decimals of 9 places, other decimals of 15 places, and times in UTC to the microsecond.
    Raises ParquetMissing."""
    require_parquet()
    import pyarrow
    from pyarrow import parquet

    types = {
        ColumnType.TEXT: pyarrow.string(),
        ColumnType.JSON: pyarrow.string(),
        ColumnType.COUNT: pyarrow.int64(),
        ColumnType.NUMBER: pyarrow.float64(),
        ColumnType.FLAG: pyarrow.bool_(),
        ColumnType.MONEY: pyarrow.decimal128(24, 9),
        ColumnType.DECIMAL: pyarrow.decimal128(38, 15),
        ColumnType.TIME: pyarrow.timestamp("us", tz="UTC"),
        ColumnType.SECOND: pyarrow.timestamp("us", tz="UTC"),
    }
    schema = pyarrow.schema([(column.name, types[column.kind]) for column in columns])
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for batch in batches(sources, ROWS_AT_ONCE):
            of_each = ([_typed(column.kind, column.of(source)) for source in batch] for column in columns)
            arrays = [pyarrow.array(values, one.type) for one, values in zip(schema, of_each, strict=True)]
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))


def with_owners(
    settled: Iterable[tuple[LedgerEntry, float]],
    owners_of: Callable[[set[str]], dict[str, Owner]],
    closings: Closings,
    dimensions_of: Callable[[list[LedgerEntry]], Mapping[str, Mapping[str, str]]] = lambda _: {},
) -> Iterator[ExportedEntry]:
    """Joins entries with their owners and dimensions, which are read in batches. `dimensions_of`: exchange id →
    dimensions of the exchange."""
    for batch in batches(settled, ROWS_AT_ONCE):
        owners = owners_of({entry.key_id for entry, _ in batch})
        dimensions = dimensions_of([entry for entry, _ in batch])
        for entry, settled_at in batch:
            has = dimensions.get(entry.exchange_id, {})
            yield ExportedEntry(entry, settled_at, owners.get(entry.key_id), closings, has)


def usd(nusd: int) -> Decimal:
    """nUSD → USD, exact."""
    return Decimal(nusd).scaleb(-9)


def _json_text(value: Any) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


@lru_cache(maxsize=64)  # rows of one entry, and of one month, share them
def _second(unix_s: float) -> str:
    return f"{iso_utc(unix_s)[:19]}Z"


# Characters that start a formula in a spreadsheet, or that it strips before the check.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")


def safe_cell(text: str) -> str:
    """Prefixes formula-like text with an apostrophe, so that no spreadsheet evaluates text that a client chose."""
    return f"'{text}" if text.startswith(_FORMULAS) else text


_CSV: dict[ColumnType, Callable[[Any], str]] = {
    ColumnType.TEXT: safe_cell,
    ColumnType.COUNT: str,
    ColumnType.NUMBER: repr,
    ColumnType.MONEY: lambda nusd: f"{usd(nusd):f}",
    ColumnType.DECIMAL: lambda number: f"{Decimal(number).normalize():f}",
    ColumnType.TIME: iso_utc,
    ColumnType.SECOND: _second,
    ColumnType.FLAG: lambda flag: "true" if flag else "false",
    ColumnType.JSON: _json_text,
}


def _typed(kind: ColumnType, value: Any) -> Any:
    """The value as pyarrow expects it."""
    if value is None:
        return None
    if kind is ColumnType.MONEY:
        return usd(value)
    if kind is ColumnType.DECIMAL:
        return Decimal(value)
    if kind in (ColumnType.TIME, ColumnType.SECOND):
        return round(value * 1e6)
    return _json_text(value) if kind is ColumnType.JSON else value
