"""Limit counters of the SQLite file, within one transaction, and sets of them (table `passages`).

Invariants: a counter is read once and written once per transaction; later reads in the transaction include earlier
changes. Reservations with equal sets share one row. The id of a set is a hash of its content, and therefore equal in
every generation of the file. A set stays as long as a reservation refers to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple, Self

import msgspec

from proxy.billing.limits import LimitCounter, quota_of
from proxy.billing.reservation import NO_AMOUNTS
from proxy.budgets.rates import Window
from proxy.budgets.sqlite.file import BudgetFile, Damaged
from proxy.budgets.verdicts import UsedAmounts, bounds_rate

_INSERT = "INSERT OR IGNORE INTO passages VALUES (?, ?)"
_DELETE_UNUSED = "DELETE FROM passages WHERE passage NOT IN (SELECT passage FROM holds)"

# Cached sets; about 1 KiB each.
CACHED_MAX = 4_096

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[LimitCounter, ...]).decode


class StoredLimits(NamedTuple):
    """A row of the table: id and encoded counters."""

    limits_id: int
    packed: bytes


class _LimitCounters(NamedTuple):
    all: tuple[LimitCounter, ...]
    rated: tuple[LimitCounter, ...]
    quotas: tuple[LimitCounter, ...]


@lru_cache(maxsize=CACHED_MAX)  # the exchanges of a key have the same set
def stored_limits_of(counters: tuple[LimitCounter, ...]) -> StoredLimits:
    """The row of this set of counters."""
    packed = _encode(counters)
    return StoredLimits(int.from_bytes(blake2b(packed, digest_size=8).digest(), signed=True), packed)


class ResolvedLimitsTable:
    """Access to the table, within transactions of `file`."""

    def __init__(self, file: BudgetFile) -> None:
        self._file = file
        self._cached: dict[int, _LimitCounters] = {}

    def counters(self, limits_id: int) -> tuple[LimitCounter, ...]:
        """All counters of a set. Raises Damaged."""
        return (self._cached.get(limits_id) or self._read(limits_id)).all

    def rated(self, limits_id: int) -> tuple[LimitCounter, ...]:
        """The counters of a set that bound rates. Raises Damaged."""
        return (self._cached.get(limits_id) or self._read(limits_id)).rated

    def quotas(self, limits_id: int) -> tuple[LimitCounter, ...]:
        """The counters of quotas of a set. Raises Damaged."""
        return (self._cached.get(limits_id) or self._read(limits_id)).quotas

    def insert(self, rows: Iterable[StoredLimits]) -> None:
        """Store these sets; existing rows stay."""
        self._file.executemany(_INSERT, rows)

    def delete_unused(self) -> None:
        """Delete the sets without a reservation."""
        self._file.execute(_DELETE_UNUSED)

    def _read(self, limits_id: int) -> _LimitCounters:
        row = self._file.execute("SELECT gates FROM passages WHERE passage = ?", (limits_id,)).fetchone()
        try:
            counters = _decode(row[0] if row else b"")
        except msgspec.DecodeError as error:
            raise Damaged(str(error)) from None
        if len(self._cached) >= CACHED_MAX:
            self._cached.clear()
        rated = tuple(filter(bounds_rate, counters))
        quotas = tuple(one for one in counters if quota_of(one.counter_id) is not None)
        read = self._cached[limits_id] = _LimitCounters(counters, rated, quotas)
        return read


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
        """counter id → unwritten changes of (reserved amount, open exchanges, closed exchanges)"""
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

    def move(
        self,
        counters: Iterable[LimitCounter],
        nusd: int,
        running: int,
        closed: int,
        amounts: Mapping[str, int] = NO_AMOUNTS,
    ) -> None:
        """Add to the reserved amount, to the open and to the closed exchanges of each counter. `amounts`: counter id →
        amount that is added there, instead of `nusd`."""
        moves = self._moves
        for counter in counters:
            amount = amounts.get(counter.counter_id, nusd) if amounts else nusd
            before = moves.get(counter.counter_id, _NO_MOVE)
            moves[counter.counter_id] = before[0] + amount, before[1] + running, before[2] + closed
            if (state := self._states.get(counter.counter_id)) is not None:
                state.reserved += amount
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
