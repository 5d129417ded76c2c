"""Moves the entries of closed months, a month at a time, from the ledger to files.

Invariants: entries are deleted only after their file is on the disk, was read back, and is recorded; only entries are
archived whose statements are issued, that every sink has sent, and that agree with the ledger's sums and statements.
After an interruption, run the command again: a month is either in the ledger as a whole, or recorded.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Table, delete, select

from proxy.billing.entries import STORED_NAMES
from proxy.billing.limits import Limits
from proxy.billing.period import Month, month_of
from proxy.budgets.thresholds import forget
from proxy.foundation.times import iso_utc
from proxy.ledger.amounts import SUMS, rows_of
from proxy.ledger.archive import contents
from proxy.ledger.archive.archives import Archive, archived_until, read_archives, statements_until
from proxy.ledger.limit_rules import read_rules
from proxy.ledger.limits import limits_of
from proxy.ledger.periods.closing import read_closings, read_periods
from proxy.ledger.schema.account_tables import accounts, api_keys, grant_clock
from proxy.ledger.schema.archive_guard import refuse_until
from proxy.ledger.schema.partitions import MONTHS_BACK
from proxy.ledger.schema.tables import (
    account_clock,
    acts,
    dead_letters,
    dimension_clock,
    ledger_entries,
    sink_letters,
    sinks,
)
from proxy.ledger.settling.settling import OPEN
from proxy.ledger.settling.sum_clocks import added_until
from proxy.reconciliation.check_periods import closed_month_stays
from proxy.reconciliation.check_sums import days_of_month_add_up
from proxy.reconciliation.reconcile import snapshot
from proxy.reports.export import KINDS, Column, ColumnType, write_parquet
from proxy.storage.database import Lock, reading, try_hold, writing
from proxy.storage.postgres import remove_time_limits

COLUMNS = tuple(
    Column(
        column.name,
        {**KINDS, "settled_at": ColumnType.TIME, "journal_seq": ColumnType.COUNT}.get(column.name, ColumnType.TEXT),
        lambda row, index=index: row[index],  # type: ignore[misc]
    )
    for index, column in enumerate(ledger_entries.c)
)
"""all columns of the table, in the table's order"""

SENT = "sent"
"""the state of a sink's dead letter that was delivered by a retry"""

_ENTRIES = ledger_entries.c
_DAY_S = 86_400.0

Say = Callable[[str], None]
Each = Callable[[Iterator[Any]], Iterator[Any]]
"""wraps the rows that are written, to count them; yields the same rows"""
WholeFile = Callable[[Path], Any]
"""a context that writes a file, which appears only when it is complete and on the disk"""


class ArchiveError(ValueError):
    """A month that cannot be archived now; the message is for the operator."""


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """The options of one archive run."""

    before: Month
    folder: Path
    by: str
    now: float
    """Unix seconds"""
    sinks: Collection[str]
    """names of the configured sinks"""


def months_before(engine: Engine, order: ArchiveOptions) -> list[Month]:
    """The months to archive, in order. Raises ArchiveError, LedgerUnavailable."""
    last = _month_before(order.now, MONTHS_BACK)
    if order.before > last:
        raise ArchiveError(f"--before: {order.before} is too late: {last} at most, so that late usage has a place")
    with reading(engine) as connection:
        archived = archived_until(connection)
        periods = read_periods(connection)
    closed = [period.month for period in periods if period.issued_at is not None]
    if not closed or closed[-1].next < order.before:
        first_open = closed[-1].next if closed else "no month"
        state = f"{first_open} is not closed" if closed else "no month is closed"
        raise ArchiveError(f"--before: {state}: archive closed months only (`tokenweir periods close`)")
    return [month for month in closed if month < order.before and (archived is None or month > archived)]


@contextmanager
def alone(engine: Engine) -> Iterator[None]:
    """Excludes other archive runs, which would move the guard. Raises ArchiveError, LedgerUnavailable."""
    if engine.dialect.name == "sqlite":
        with _locked(Path(engine.url.database or ".").parent):
            yield
        return
    with writing(engine) as connection:
        remove_time_limits(connection)
        if not try_hold(connection, Lock.ARCHIVE):
            raise ArchiveError(_RUNNING)
        yield


_RUNNING = "another process archives: wait for it"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    fd = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArchiveError(_RUNNING) from None
        yield
    finally:
        os.close(fd)


def finish(engine: Engine, order: ArchiveOptions, say: Say) -> None:
    """Complete an interrupted run: reset the guard and delete recorded entries. Raises LedgerUnavailable."""
    with reading(engine) as connection:
        recorded = read_archives(connection)
    _reset_guard(engine, say)
    for one in recorded:
        if not one.removed:
            contents.remove(engine, one.month, order.now, say)


def archive(
    engine: Engine, month: Month, order: ArchiveOptions, whole_file: WholeFile, say: Say, each: Each = iter
) -> Archive:
    """Move one month. Raises ArchiveError, ParquetMissing, OSError, LedgerUnavailable; then nothing has changed."""
    path = _free(order.folder, f"entries-{month}", "parquet")
    refuse_until(engine, month, say)
    try:
        done, sums, received = _stored(engine, month, path, order, whole_file, each)
        contents.record(engine, done, sums, received)
    except BaseException:
        _reset_guard(engine, say)
        raise
    contents.remove(engine, month, order.now, say)
    return done


def _reset_guard(engine: Engine, say: Say) -> None:
    """Set the guard to the last recorded archive; an interrupted call may have moved it already or not yet."""
    with reading(engine) as connection:
        month = archived_until(connection)
    refuse_until(engine, month, say)


def archive_logs(engine: Engine, order: ArchiveOptions, whole_file: WholeFile) -> list[tuple[str, int]]:
    """Move closed dead letters and the audit log to files of JSON lines; returns the files and their numbers of rows.
    Deletes delivered alerts and delivered dead letters of sinks.

    Raises OSError, LedgerUnavailable.
    """
    first = order.before.since
    letters = dead_letters.c
    closed = (letters.state != OPEN, letters.state_at < first)
    moved = [
        _move(engine, dead_letters, closed, order.folder, f"dead-letters-before-{order.before}", whole_file),
        _move(engine, acts, (acts.c.at < first,), order.folder, f"audit-log-before-{order.before}", whole_file),
    ]
    forget(engine, first, order.now)
    with writing(engine) as connection:
        connection.execute(delete(sink_letters).where(sink_letters.c.state == SENT, sink_letters.c.first_seen < first))
    return [one for one in moved if one is not None]


def _move(
    engine: Engine, table: Table, which: Sequence[ColumnElement[bool]], folder: Path, name: str, whole_file: WholeFile
) -> tuple[str, int] | None:
    """Move the selected rows to a file. Rows that change meanwhile stay in the table."""
    path = _free(folder, name, "jsonl")
    key = list(table.primary_key)
    written = 0
    received: list[tuple[str, int, int]] = []
    with snapshot(engine) as connection:
        if connection.execute(select(*key).where(*which).limit(1)).first() is None:
            return None
        with whole_file(path) as file:
            for row in rows_of(connection, select(table).where(*which).order_by(*key)):
                fields = row._asdict()
                file.write(f"{json.dumps(fields, ensure_ascii=False)}\n".encode("utf-8", "surrogatepass"))
                written += 1
                if fields.get("node") is not None:
                    received.append((row.node, row.journal_seq, row.journal_seq))
    with writing(engine) as connection:
        contents.keep_receipts(connection, received)
        connection.execute(delete(table).where(*which))
    return path.name, written


def _free(folder: Path, name: str, kind: str) -> Path:
    """An unused file name. No file is overwritten, because it may be the only copy of its rows."""
    tries = (folder / f"{name}{'' if number == 1 else f'-{number}'}.{kind}" for number in count(1))
    return next(path for path in tries if not path.exists())


def _stored(
    engine: Engine, month: Month, path: Path, order: ArchiveOptions, whole_file: WholeFile, each: Each
) -> tuple[Archive, list[dict[str, Any]], contents.Receipts]:
    """Write and verify the archive file; returns the archive with the sums and receipts to keep, all of one
    snapshot."""
    with snapshot(engine) as connection:
        last = _checked(connection, month, order)
        with whole_file(path) as file, closing(contents.rows(connection, month)) as rows:
            write_parquet(file, COLUMNS, each(rows))
        totals = contents.totals(connection, month)
        if _read_back(path) != totals:
            raise ArchiveError(f"{path}: differs from the ledger after writing: is the disk sound?")
        entries = totals[SUMS.index("entries")]
        done = Archive(month, last, entries, path.name, _sha256(path), order.now, order.by, removed=False)
        return done, contents.kept_sums(connection, month), contents.receipts(connection, month)


def _checked(connection: Connection, month: Month, order: ArchiveOptions) -> Month:
    """The last month of the entries' statements. Raises ArchiveError."""
    issued = [read_period.month for read_period in read_periods(connection) if read_period.issued_at is not None]
    last = contents.last_statements(connection, month, read_closings(connection))
    if last > issued[-1]:
        raise ArchiveError(f"{month}: some of its entries are on the statements of {last}, which is not closed")
    settled = contents.last_settled(connection, month)
    if settled is not None:
        for clock in (account_clock, dimension_clock, grant_clock):
            if settled > added_until(connection, clock):
                raise ArchiveError(f"{month}: the daily sums do not have all of its entries yet: is a server running?")
        for name in _behind(connection, month, settled, order.sinks):
            raise ArchiveError(f"{month}: the sink {name} has not had all of its entries (`tokenweir sinks status`)")
    with closing(_windows_from(connection, month, order.now)) as windows:
        for name, began, ends in windows:
            raise ArchiveError(
                f"{month}: the budget of {name} counts from {began} on, for which the entries of that day are needed "
                f"until {ends}"
            )
    archived = statements_until(connection)
    checks = [("the sums of its days", days_of_month_add_up)]
    if archived is None or month > archived:
        checks.append(("its statements", closed_month_stays))
    for what, check in checks:
        if found := check(connection, month).examples:
            raise ArchiveError(f"{month}: its entries differ from {what} (`tokenweir reconcile`): {found[0]}")
    return last


def _behind(connection: Connection, month: Month, settled: float, names: Collection[str]) -> Iterator[str]:
    """The sinks that have not sent all of the entries."""
    late = select(sinks.c.name).where(sinks.c.name.in_(names), sinks.c.settled_at < settled)
    yield from connection.execute(late).scalars()
    rejected = select(sink_letters.c.sink).join(ledger_entries, _ENTRIES.entry_id == sink_letters.c.entry_id)
    rejected = rejected.where(contents.of_month(month), sink_letters.c.state != SENT, sink_letters.c.sink.in_(names))
    yield from connection.execute(rejected.limit(1)).scalars()


def _windows_from(connection: Connection, month: Month, now: float) -> Generator[tuple[str, str, str]]:
    """The budgets whose window began before the end of the month, inside a UTC day: name, beginning, end. Such a window
    needs the entries of that day; other windows need only the sums of days. But those of rules by several dimensions
    need all of their entries."""
    for rule in read_rules(connection):
        is_daily = len(rule.values) + len(rule.split_by) <= 1
        span = _rolling(rule.limits, rule.created_at, now) if is_daily else _window(rule.limits, rule.created_at, now)
        if span is not None and span[0] < month.until:
            yield f"the limit {rule.name} ({rule.rule_id})", iso_utc(span[0]), iso_utc(span[1]) if span[1] else "ever"
    for table, key, name in ((api_keys, "key_id", "alias"), (accounts, "account_id", "name")):
        columns = table.c
        query = select(columns[key], columns[name], columns.limits, columns.created_at)
        query = query.where(columns.limits.is_not(None), columns.created_at < month.until)
        with closing(rows_of(connection, query)) as found:
            for row in found:
                if (span := _rolling(limits_of(row.limits), row.created_at, now)) and span[0] < month.until:
                    yield f"{row[1]} ({row[0]})", iso_utc(span[0]), iso_utc(span[1]) if span[1] else "ever"


def _rolling(limits: Limits, created_at: float, now: float) -> tuple[float, float | None] | None:
    """The current window of a budget, if it began inside a UTC day and not at midnight."""
    span = _window(limits, created_at, now)
    return None if span is None or not span[0] % _DAY_S else span


def _window(limits: Limits, created_at: float, now: float) -> tuple[float, float | None] | None:
    """The current window of a budget, in Unix seconds; the end None: never."""
    if limits.budget_nusd is None:
        return None
    return limits.window_start(created_at, now), limits.window_end(created_at, now)


def _read_back(path: Path) -> tuple[int, ...]:
    """The sums of the file, in the form of `contents.totals`. Money: nUSD."""
    from pyarrow import compute, parquet

    read = parquet.ParquetFile(path)
    names = {
        name: STORED_NAMES["charge_nusd" if name == "charged_nusd" else name] for name in SUMS if name != "entries"
    }
    sums = dict.fromkeys(names, 0)
    for batch in read.iter_batches(columns=sorted(names.values())):
        for name, column in names.items():
            value = Decimal(compute.sum(batch.column(column)).as_py() or 0)
            sums[name] += int(value.scaleb(9) if name.endswith("_nusd") else value)
    return tuple(read.metadata.num_rows if name == "entries" else sums[name] for name in SUMS)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _month_before(now: float, months: int) -> Month:
    month = month_of(now)
    for _ in range(months):
        month = month_of(month.since - 1)
    return month
