"""Gates as they stand in the file of holds and sums, within one transaction.

Law: each is read once, and written once for all that is held there; who comes later in the transaction finds what came
before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Self

from proxy.billing.limits import Gate
from proxy.billing.reservation import Hold
from proxy.keys.budget_file import BudgetFile
from proxy.keys.rates import Window
from proxy.keys.verdicts import State

_SELECT_GATES = "SELECT gate_id, since, spent, held, open, counted FROM gates WHERE gate_id IN (?*)"
_MOVE = "UPDATE gates SET held = held + ?, open = open + ?, closed = closed + ? WHERE gate_id IN (?*)"
_NEW_GATE = "INSERT OR IGNORE INTO gates VALUES (?, NULL, NULL, NULL, 0, 0, 0, NULL)"
COUNTED = "UPDATE gates SET counted = ? WHERE gate_id = ?"


class Moves:
    """What more is held at gates; each is written once, where the `with` ends well."""

    def __init__(self, file: BudgetFile) -> None:
        self.gates: dict[str, tuple[int, int, int]] = {}
        """gate → so much more, for so many more exchanges that run, and that have ended; not written yet"""
        self._file = file

    def add(self, gates: Iterable[Gate], nusd: int, running: int, closed: int) -> None:
        """The same at each of these."""
        moves = self.gates
        for gate in gates:
            before = moves.get(gate.gate_id)
            if before is None:
                moves[gate.gate_id] = nusd, running, closed
            else:
                moves[gate.gate_id] = before[0] + nusd, before[1] + running, before[2] + closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if failed is None:
            self.write()

    def write(self) -> None:
        """All of it; then there is nothing more."""
        alike: dict[tuple[int, int, int], list[str]] = {}
        for gate_id, move in self.gates.items():
            alike.setdefault(move, []).append(gate_id)
        for move, gate_ids in alike.items():
            statement, ids = of_all(_MOVE, gate_ids)
            self._file.execute(statement, (*move, *ids))
        self.gates.clear()


class Gates:
    """Gates as they stand within one transaction: each is read once, and written once for all that is held there."""

    def __init__(self, file: BudgetFile, now: float) -> None:
        self._file = file
        self._now = now
        self._states: dict[str, State] = {}
        self._moves = Moves(file)

    def states(self, gates: Sequence[Gate]) -> list[State]:
        """As they are, with what was counted in."""
        found = self._states
        unread = [one for one in gates if (state := found.get(one.gate_id)) is None or state.gate != one]
        if unread:
            self._read(unread)
        return [found[one.gate_id] for one in gates]

    def _read(self, gates: Sequence[Gate]) -> None:
        gate_ids = [gate.gate_id for gate in gates]
        if not self._moves.gates.keys().isdisjoint(gate_ids):  # read before, with other bounds or for another window
            self.write()
        rows = {row[0]: row for row in self._file.execute(*of_all(_SELECT_GATES, gate_ids))}
        self._states.update((gate.gate_id, _state(gate, rows.get(gate.gate_id), self._now)) for gate in gates)

    def count_in(self, hold: Hold, states: Iterable[State], second: int) -> None:
        """It is held there, too."""
        for state in states:
            if state.window is not None:
                state.window.add(second, 1, hold.tokens)
            state.held += hold.nusd
            state.running += 1
        self._moves.add(hold.gates, hold.nusd, 1, 0)

    def write(self) -> None:
        """What was counted in."""
        for gate_id in self._moves.gates:
            state = self._states[gate_id]
            if not state.known:
                self._file.execute(_NEW_GATE, (gate_id,))
                state.known = True
            if state.window is not None:
                self._file.execute(COUNTED, (state.window.packed(), gate_id))
        self._moves.write()


def _state(gate: Gate, row: tuple[str, float | None, int | None, int, int, bytes | None] | None, now: float) -> State:
    _, since, spent, held, running, counted = row or ("", None, None, 0, 0, None)
    window = Window(counted, now) if gate.rpm is not None or gate.tpm is not None else None
    return State(
        gate, spent=spent if since == gate.since else None, held=held, running=running, window=window, known=bool(row)
    )


def of_all(statement: str, ids: list[str]) -> tuple[str, list[str]]:
    """The statement for so many, at least one, where it has `?*`; and what to bind there."""
    size = 1 << (len(ids) - 1).bit_length()  # few sizes: each is a statement that SQLite has to prepare
    return _sql(statement, size), ids + ids[-1:] * (size - len(ids))


@cache
def _sql(statement: str, count: int) -> str:
    return statement.replace("?*", ",".join("?" * count))
