"""Limit counters of the SQLite file, within one transaction.

Invariant: a counter is read once and written once per transaction; later reads in the transaction include earlier
changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Self

from proxy.billing.limits import LimitCounter
from proxy.budgets.rates import Window
from proxy.budgets.sqlite.file import BudgetFile
from proxy.budgets.verdicts import UsedAmounts, bounds_rate

_SELECT = "SELECT gate_id, since, spent, held, open, counted FROM (VALUES ?*) CROSS JOIN gates ON gate_id = column1"
_MOVE = "UPDATE gates SET held = held + ?, open = open + ?, closed = closed + ? WHERE gate_id = ?"
_NEW = "INSERT OR IGNORE INTO gates VALUES (?, NULL, NULL, NULL, 0, 0, 0, NULL)"
_COUNTED = "UPDATE gates SET counted = ? WHERE gate_id = ?"

# Rows read by one statement.
_ROWS = 64

_NO_MOVE = 0, 0, 0


class CounterTable:
    """Counters within one transaction. Changes are written at the end of the `with` block, unless it raises."""

    def __init__(self, file: BudgetFile, now: float) -> None:
        self._file = file
        self._now = now
        self._states: dict[str, UsedAmounts] = {}
        self._moves: dict[str, tuple[int, int, int]] = {}
        """counter id → unwritten changes of (reserved nUSD, open exchanges, closed exchanges)"""
        self._counted: dict[str, Window] = {}
        """counter id → its rate window, if the window changed"""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if failed is None:
            self._write()

    def states(self, counters: Sequence[LimitCounter]) -> list[UsedAmounts]:
        """The current states, including unwritten changes."""
        states = self._states
        unread = [one for one in counters if (state := states.get(one.counter_id)) is None or state.counter != one]
        if unread:
            self._read(unread)
        return [states[one.counter_id] for one in counters]

    def move(self, counters: Iterable[LimitCounter], nusd: int, running: int, closed: int) -> None:
        """Add to the reserved nUSD, to the open and to the closed exchanges of each counter."""
        moves = self._moves
        for counter in counters:
            before = moves.get(counter.counter_id, _NO_MOVE)
            moves[counter.counter_id] = before[0] + nusd, before[1] + running, before[2] + closed
            if (state := self._states.get(counter.counter_id)) is not None:
                state.reserved += nusd
                state.running += running

    def count(self, states: Iterable[UsedAmounts], second: int, requests: int, tokens: int) -> None:
        """Add to the bucket of `second` at each counter that bounds rates; 0 requests: a correction of the tokens."""
        for state in states:
            if state.window is not None:
                state.window.add(second, requests, tokens)
                self._counted[state.counter.counter_id] = state.window

    def _read(self, counters: Sequence[LimitCounter]) -> None:
        counter_ids = [counter.counter_id for counter in counters]
        if not self._states.keys().isdisjoint(counter_ids):  # read before, with other bounds or another window
            self._write()
        rows = {row[0]: row for row in rows_of(self._file, _SELECT, counter_ids)}
        for counter in counters:
            state = self._states[counter.counter_id] = _state(counter, rows.get(counter.counter_id), self._now)
            reserved, running, _ = self._moves.get(counter.counter_id, _NO_MOVE)
            state.reserved += reserved
            state.running += running

    def _write(self) -> None:
        new = [
            (counter_id,) for counter_id in self._moves if (state := self._states.get(counter_id)) and not state.stored
        ]
        if new:
            self._file.executemany(_NEW, new)
        self._file.executemany(_MOVE, [(*move, counter_id) for counter_id, move in self._moves.items()])
        if self._counted:
            self._file.executemany(
                _COUNTED, [(window.packed(), counter_id) for counter_id, window in self._counted.items()]
            )
        self._moves.clear()
        self._counted.clear()


def _state(
    counter: LimitCounter, row: tuple[str, float | None, int | None, int, int, bytes | None] | None, now: float
) -> UsedAmounts:
    _, since, spent, reserved, running, counted = row or ("", None, None, 0, 0, None)
    window = Window(counted, now) if bounds_rate(counter) else None
    spent = spent if since == counter.since else None
    return UsedAmounts(counter, spent=spent, reserved=reserved, running=running, window=window, stored=bool(row))


def rows_of(file: BudgetFile, statement: str, ids: Sequence[str]) -> list[Any]:
    """The rows of a statement that joins `ids` by `VALUES ?*`. Faster than `IN (…)`, for which SQLite builds a
    temporary table."""
    rows: list[Any] = []
    for at in range(0, len(ids), _ROWS):
        some: list[str | None] = [*ids[at : at + _ROWS]]
        size = 1 << (len(some) - 1).bit_length()  # few sizes, because SQLite prepares a statement for each
        some += [None] * (size - len(some))
        rows += file.execute(_sql(statement, size), some).fetchall()
    return rows


@cache
def _sql(statement: str, count: int) -> str:
    return statement.replace("?*", ",".join(["(?)"] * count))
