"""Gates as they stand in the file of holds and sums, within one transaction.

Law: each is read once, and written once for all that happens there; who comes later in the transaction finds what came
before.
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

# Rows that one statement asks for.
_ROWS = 64

_NOTHING = 0, 0, 0


class CounterTable:
    """Within one transaction. What is moved and counted is written where the `with` ends well."""

    def __init__(self, file: BudgetFile, now: float) -> None:
        self._file = file
        self._now = now
        self._states: dict[str, UsedAmounts] = {}
        self._moves: dict[str, tuple[int, int, int]] = {}
        """gate → so much more held, for so many more exchanges that run, and that have ended; not written yet"""
        self._counted: dict[str, Window] = {}
        """gate → its window, if that changed"""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if failed is None:
            self._write()

    def states(self, gates: Sequence[LimitCounter]) -> list[UsedAmounts]:
        """As they are, with what was moved and counted so far."""
        found = self._states
        unread = [one for one in gates if (state := found.get(one.gate_id)) is None or state.gate != one]
        if unread:
            self._read(unread)
        return [found[one.gate_id] for one in gates]

    def move(self, gates: Iterable[LimitCounter], nusd: int, running: int, closed: int) -> None:
        """So much more is held at each of these, for so many more exchanges."""
        moves = self._moves
        for gate in gates:
            before = moves.get(gate.gate_id, _NOTHING)
            moves[gate.gate_id] = before[0] + nusd, before[1] + running, before[2] + closed
            if (state := self._states.get(gate.gate_id)) is not None:
                state.held += nusd
                state.running += running

    def count(self, states: Iterable[UsedAmounts], second: int, requests: int, tokens: int) -> None:
        """So many more in the bucket of that second, where rates are bounded; no requests: a correction."""
        for state in states:
            if state.window is not None:
                state.window.add(second, requests, tokens)
                self._counted[state.gate.gate_id] = state.window

    def _read(self, gates: Sequence[LimitCounter]) -> None:
        gate_ids = [gate.gate_id for gate in gates]
        if not self._states.keys().isdisjoint(gate_ids):  # read before, with other bounds or for another window
            self._write()
        rows = {row[0]: row for row in rows_of(self._file, _SELECT, gate_ids)}
        for gate in gates:
            state = self._states[gate.gate_id] = _state(gate, rows.get(gate.gate_id), self._now)
            held, running, _ = self._moves.get(gate.gate_id, _NOTHING)
            state.held += held
            state.running += running

    def _write(self) -> None:
        new = [(gate_id,) for gate_id in self._moves if (state := self._states.get(gate_id)) and not state.known]
        if new:
            self._file.executemany(_NEW, new)
        self._file.executemany(_MOVE, [(*move, gate_id) for gate_id, move in self._moves.items()])
        if self._counted:
            self._file.executemany(_COUNTED, [(window.packed(), gate_id) for gate_id, window in self._counted.items()])
        self._moves.clear()
        self._counted.clear()


def _state(
    gate: LimitCounter, row: tuple[str, float | None, int | None, int, int, bytes | None] | None, now: float
) -> UsedAmounts:
    _, since, spent, held, running, counted = row or ("", None, None, 0, 0, None)
    window = Window(counted, now) if bounds_rate(gate) else None
    spent = spent if since == gate.since else None
    return UsedAmounts(gate, spent=spent, held=held, running=running, window=window, known=bool(row))


def rows_of(file: BudgetFile, statement: str, ids: Sequence[str]) -> list[Any]:
    """What the statement gives for these, with `?*` for the values that it joins: SQLite builds a table of what `IN`
    lists, which costs more than to look them all up."""
    rows: list[Any] = []
    for at in range(0, len(ids), _ROWS):
        some: list[str | None] = [*ids[at : at + _ROWS]]
        size = 1 << (len(some) - 1).bit_length()  # few sizes: each is a statement that SQLite has to prepare
        some += [None] * (size - len(some))
        rows += file.execute(_sql(statement, size), some).fetchall()
    return rows


@cache
def _sql(statement: str, count: int) -> str:
    return statement.replace("?*", ",".join(["(?)"] * count))
