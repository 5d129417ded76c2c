"""Sums over entries: balances by key, daily usage by key and model.

Invariants: a sum changes only in the transaction that inserts its entry; unknown amounts add nothing; a top-up changes
a balance and not the daily usage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, Dialect, Table, func, literal_column

from proxy.billing.entries import EntryKind, LedgerEntry
from proxy.ledger.schema.tables import balances, usage_daily
from proxy.storage.prepared import PreparedInsert, prepared_insert

_COUNTED = attrgetter(
    "charge_nusd",
    "cost_nusd",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "total_tokens",
)
_DAY_S = 86_400
_EPOCH = date(1970, 1, 1)


class Sums:
    """Adds entries to the sums."""

    def __init__(self, dialect: Dialect) -> None:
        self._balances = _adding(balances, dialect)
        self._daily = _adding(usage_daily, dialect)

    def bound(self, entries: Iterable[LedgerEntry]) -> tuple[Any, Any]:
        """The sums of one or more entries, bound for `add`. Raises the error of an invalid row."""
        usage, credit = _by_day(entries)
        # In the order of the keys, so that two transactions cannot deadlock.
        keys = [(key, *sums) for key, sums in sorted(_by_key([*usage.items(), *credit.items()]).items())]
        days = [(_EPOCH + timedelta(day), key, model, *sums) for (key, day, model), sums in sorted(usage.items())]
        return self._balances.bound(keys), self._daily.bound(days) if days else None

    def add(self, connection: Connection, bound: tuple[Any, Any]) -> None:
        """Add sums from `bound`. Raises the error of an invalid row."""
        by_key, by_day = bound
        self._balances.execute(connection, by_key)
        if by_day is not None:
            self._daily.execute(connection, by_day)


_ByDay = dict[tuple[str, int, str], list[int]]
"""(key_id, days since 1970 in UTC, model) → the sums, in the tables' order"""


def _by_day(entries: Iterable[LedgerEntry]) -> tuple[_ByDay, _ByDay]:
    """The sums of usage, and the sums of top-ups."""
    usage: _ByDay = {}
    credit: _ByDay = {}
    for entry in entries:
        sums = credit if entry.kind == EntryKind.CREDIT else usage
        # Rounded like the column: half a microsecond before midnight is midnight there.
        group = (entry.key_id, int(round(entry.started_at, 6) // _DAY_S), entry.model)
        total = sums.setdefault(group, [0] * 8)
        for index, value in enumerate(_COUNTED(entry)):
            if value is not None:
                total[index] += value
        total[7] += 1
    return usage, credit


def _by_key(by_day: Iterable[tuple[tuple[str, int, str], list[int]]]) -> dict[str, Sequence[int]]:
    sums: dict[str, Sequence[int]] = {}
    for (key_id, _day, _model), more in by_day:
        sums[key_id] = [a + b for a, b in zip(sums[key_id], more, strict=True)] if key_id in sums else more
    return sums


def _adding(table: Table, dialect: Dialect) -> PreparedInsert:
    """The statement that inserts a new row or adds to an existing one."""
    return prepared_insert(table, lambda insert: or_added(insert, table), dialect)


def or_added(insert: Any, table: Table) -> Any:
    """The insert into a table of sums, extended: a row is added to the one with its key."""
    names = [column.key for column in table.columns if not column.primary_key]
    sums = {name: table.c[name] + insert.excluded[name] for name in names}
    # Rounded to the nano-USD at every step, so that SQLite's float stays the nearest to the exact sum.
    for name in ("charged_nusd", "cost_nusd"):
        sums[name] = func.round(sums[name], literal_column("9"), type_=table.c[name].type)
    return insert.on_conflict_do_update(index_elements=list(table.primary_key.columns), set_=sums)
