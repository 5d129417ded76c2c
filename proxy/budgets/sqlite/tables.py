"""What is read and written in the file of holds and sums; each method within a transaction of `BudgetFile`.

Law: a gate's `held`, `open` and `closed` are at every commit what its holds add up to.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

import msgspec

from proxy.billing.reservation import CounterState, Granted, Hold, SpendDelta, SpendTotal, Unseeded, Verdict
from proxy.budgets.seed_generations import SeedGenerations
from proxy.budgets.sqlite.counters import CounterTable, rows_of
from proxy.budgets.sqlite.file import BudgetFile, Damaged
from proxy.budgets.sqlite.resolved_limits import ResolvedLimitsTable, stored_limits_of
from proxy.budgets.verdicts import bounds_holds, levels, passes, verdict

# Nothing where its passage is not there.
_NEW_HOLD = "INSERT OR IGNORE INTO holds SELECT ?, ?, ?, ?, ?, NULL, passage FROM passages WHERE passage = ?"
_SELECT_HOLDS = (
    "SELECT exchange_id, nusd, tokens, second, closed_at IS NULL, passage"
    " FROM (VALUES ?*) CROSS JOIN holds ON exchange_id = column1"
)
_SELECT_SEEDED = (
    "SELECT gate_id, since, as_of_us FROM (VALUES ?*) CROSS JOIN gates ON gate_id = column1 WHERE spent IS NOT NULL"
)
_CLOSE_HOLD = "UPDATE holds SET nusd = ?, tokens = ?, closed_at = coalesce(closed_at, ?) WHERE exchange_id = ?"
_DROP_HOLD = "DELETE FROM holds WHERE exchange_id = ?"
_STANDINGS = (
    "SELECT gate_id, since, spent, held, open, closed FROM gates WHERE (spent IS NOT NULL OR open + closed > 0)"
)
_SPEND = "UPDATE gates SET spent = spent + ? WHERE gate_id = ?"
# A sum that knows more of the same window stays.
_SEED = (
    "INSERT INTO gates VALUES (?, ?, ?, ?, 0, 0, 0, NULL) ON CONFLICT (gate_id) DO UPDATE"
    " SET since = excluded.since, spent = excluded.spent, as_of_us = excluded.as_of_us"
    " WHERE spent IS NULL OR since <> excluded.since OR as_of_us <= excluded.as_of_us"
)

# Nobody takes so long to read the ledger. After that an older ledger, one from a backup, is believed.
FLOOR_S = 60.0

_GRANTED = Granted(())

_gates_of = attrgetter("counters")


class _Kept(msgspec.Struct, frozen=True, gc=False):
    """A hold: a row of the file."""

    exchange_id: str
    nusd: int
    tokens: int
    second: int
    """the bucket that its tokens count in"""
    open: int
    """1 while its exchange runs"""
    passage: int
    """whose gates it is held at"""


class HeldAlready(Exception):  # noqa: N818  a state, not an error
    """One of several exchanges is held already; nothing happened."""


@dataclass(frozen=True, slots=True)
class OverdueReport:
    """What the file had of a node."""

    ids: frozenset[str]
    generation: str


class BudgetTables:
    """As one node uses them. What is promised: see BudgetStore."""

    def __init__(self, file: BudgetFile, node: str, unix_time: Callable[[], float]) -> None:
        self._file = file
        self._node = node
        self._unix_time = unix_time
        self._readings = SeedGenerations()
        self._passages = ResolvedLimitsTable(file)

    # -- one exchange

    def turn(self, ended: Sequence[Hold], asked: Sequence[Hold]) -> list[Verdict | None]:
        """These have ended; then, one after the other, whether those pass. None: what other processes hold matters
        here, and is not known yet. Raises HeldAlready."""
        now = self._unix_time()
        with CounterTable(self._file, now) as gates:
            self._close(ended, gates)
            new: list[Hold] = []
            answers: list[Verdict | None] = []
            for _, alike in groupby(asked, key=_gates_of):
                answers += self._answers(list(alike), gates, now, new)
            if new and self._keep(new, int(now)) < len(new):
                raise HeldAlready
        return answers

    def reserve(self, hold: Hold) -> Verdict | None:
        """As in `turn`, for one that may be held already."""
        if self._kept(hold.exchange_id) is not None:
            return Granted(levels(self._gates().states(hold.counters), self._unix_time()))
        return self.turn((), (hold,))[0]

    def _answers(self, alike: list[Hold], gates: CounterTable, now: float, new: list[Hold]) -> Sequence[Verdict | None]:
        """Of holds at the same gates. `new`: those to be kept, they with them that pass."""
        states = gates.states(alike[0].counters)
        nusd, count = sum([hold.nusd for hold in alike]), len(alike)
        if self._warming or not all([passes(state, nusd, count) for state in states]):  # noqa: C419  half the time
            return [self._answer(hold, gates, now, new) for hold in alike]
        gates.move(alike[0].counters, nusd, count, 0)
        new += alike
        return [_GRANTED] * count

    def _answer(self, hold: Hold, gates: CounterTable, now: float, new: list[Hold]) -> Verdict | None:
        """Of one."""
        states = gates.states(hold.counters)
        answer: Verdict | None = verdict(hold, states, now)
        if isinstance(answer, Granted) and self._warming and any(bounds_holds(gate) for gate in hold.counters):
            answer = None
        if isinstance(answer, Granted):
            gates.move(hold.counters, hold.nusd, 1, 0)
            gates.count(states, int(now), 1, hold.tokens)
            new.append(hold)
        elif self._kept(hold.exchange_id) is not None or any(one.exchange_id == hold.exchange_id for one in new):
            answer = _GRANTED
        elif isinstance(answer, Unseeded):
            self._readings.begin(answer.counters, self._file.generation)
        return Granted(levels(states, now)) if isinstance(answer, Granted) else answer

    def grow(self, exchange_id: str, nusd: int) -> bool:
        """See BudgetStore."""
        kept = self._kept(exchange_id)
        if kept is None or not kept.open:
            return True
        with self._gates() as gates:
            if nusd > kept.nusd:
                self._file.execute("UPDATE holds SET nusd = ? WHERE exchange_id = ?", (nusd, exchange_id))
                gates.move(self._passages.gates(kept.passage), nusd - kept.nusd, 0, 0)
            states = gates.states(self._passages.gates(kept.passage))
        return all(
            state.gate.nusd_max is None or state.spent is None or state.spent + state.held <= state.gate.nusd_max
            for state in states
        )

    def close(self, ended: Sequence[Hold]) -> None:
        """See BudgetStore."""
        with self._gates() as gates:
            self._close(ended, gates)

    def end(self, exchange_ids: Sequence[str]) -> None:
        """Those of them that run have ended, at what they hold."""
        now = self._unix_time()
        with self._gates() as gates:
            running = [kept for kept in self._all_kept(exchange_ids) if kept.open]
            for kept in running:
                self._file.execute("UPDATE holds SET closed_at = ? WHERE exchange_id = ?", (now, kept.exchange_id))
                gates.move(self._passages.gates(kept.passage), 0, -1, 1)

    def release(self, exchange_ids: Sequence[str]) -> None:
        """See BudgetStore."""
        with self._gates() as gates:
            self._drop(self._all_kept(exchange_ids), gates)

    def release_open(self, exchange_ids: Sequence[str]) -> int:
        """Those of them that still run; how many that were."""
        with self._gates() as gates:
            running = [kept for kept in self._all_kept(exchange_ids) if kept.open]
            self._drop(running, gates)
        return len(running)

    @property
    def _warming(self) -> bool:
        return self._file.warm_until > 0.0 and self._file.warm_until > time.monotonic()

    def _gates(self) -> CounterTable:
        return CounterTable(self._file, self._unix_time())

    def _keep(self, holds: Sequence[Hold], second: int) -> int:
        """Hold these, as ones that run, but for those that are there already; how many were not."""
        passages = {id(hold.counters): stored_limits_of(hold.counters) for hold in holds}
        rows = [
            (hold.exchange_id, self._node, hold.nusd, hold.tokens, second, passages[id(hold.counters)].name)
            for hold in holds
        ]
        kept = self._file.executemany(_NEW_HOLD, rows).rowcount
        if kept < len(rows):  # mostly the first of a passage
            self._passages.keep(passages.values())
            kept += self._file.executemany(_NEW_HOLD, rows).rowcount
        return kept

    def _kept(self, exchange_id: str) -> _Kept | None:
        return next(iter(self._all_kept([exchange_id])), None)

    def _all_kept(self, exchange_ids: Sequence[str]) -> list[_Kept]:
        return [_Kept(*row) for row in rows_of(self._file, _SELECT_HOLDS, list(dict.fromkeys(exchange_ids)))]

    def _close(self, ended: Iterable[Hold], gates: CounterTable) -> None:
        told = {one.exchange_id: one for one in ended}
        self._end([(kept, told[kept.exchange_id]) for kept in self._all_kept(list(told))], gates)

    def _end(self, ended: Iterable[tuple[_Kept, Hold]], gates: CounterTable) -> None:
        """They have, at their charges; what is charged nothing is forgotten."""
        now, charged, free = self._unix_time(), [], []
        moved: dict[int, list[int]] = {}
        for kept, one in ended:
            if one.tokens != kept.tokens and (rated := self._passages.rated(kept.passage)):
                gates.count(gates.states(rated), kept.second, 0, one.tokens - kept.tokens)
            if one.nusd == 0:
                free.append(kept)
            else:
                charged.append((one.nusd, one.tokens, now, kept.exchange_id))
                sums = moved.get(kept.passage) or moved.setdefault(kept.passage, [0, 0])
                sums[0] += one.nusd - kept.nusd
                sums[1] += kept.open
        if charged:
            self._file.executemany(_CLOSE_HOLD, charged)
        for passage, (nusd, running) in moved.items():
            gates.move(self._passages.gates(passage), nusd, -running, running)
        if free:
            self._drop(free, gates)

    def _drop(self, held: Sequence[_Kept], gates: CounterTable) -> None:
        """They are held no longer."""
        self._file.executemany(_DROP_HOLD, [(kept.exchange_id,) for kept in held])
        alike: dict[int, list[_Kept]] = {}
        for kept in held:
            alike.setdefault(kept.passage, []).append(kept)
        for passage, some in alike.items():
            running = sum([one.open for one in some])
            gates.move(self._passages.gates(passage), -sum([one.nusd for one in some]), -running, running - len(some))

    # -- all of a node

    def fencing_token(self) -> str | None:
        """What `look` gave last, as long as the file has what was told it since."""
        row = self._file.execute("SELECT announced FROM nodes WHERE node = ?", (self._node,)).fetchone()
        return None if row is None else str(row[0])

    def look(self) -> tuple[OverdueReport, str]:
        """What the file has of this node; and a new word."""
        word = secrets.token_hex(8)
        self._file.execute("INSERT OR REPLACE INTO nodes VALUES (?, ?)", (self._node, word))
        self._passages.forget()
        rows = self._file.execute("SELECT exchange_id FROM holds WHERE node = ?", (self._node,))
        return OverdueReport(frozenset(row[0] for row in rows), self._file.generation), word

    def tell_open(self, told: Iterable[Hold], looked: OverdueReport) -> None:
        """These run, at these quotes."""
        for one in told:
            if (kept := self._kept(one.exchange_id)) is not None:
                self._file.execute(
                    "UPDATE holds SET node = ?, nusd = ?, closed_at = NULL WHERE exchange_id = ?",
                    (self._node, one.nusd, kept.exchange_id),
                )
                with self._gates() as gates:
                    gates.move(self._passages.gates(kept.passage), one.nusd - kept.nusd, 1 - kept.open, kept.open - 1)
            elif not self._released_since(one, looked):
                self._restore(one, counts=True)

    def tell_closed(self, told: Iterable[Hold], looked: OverdueReport) -> None:
        """These have ended, at these charges."""
        for one in told:
            if (kept := self._kept(one.exchange_id)) is not None:
                self._file.execute("UPDATE holds SET node = ? WHERE exchange_id = ?", (self._node, one.exchange_id))
                with self._gates() as gates:
                    self._end([(kept, one)], gates)
            elif one.nusd and not self._released_since(one, looked):
                self._restore(one, counts=False)
                self.close([one])

    def abandon(self, node: str) -> set[str]:
        """Its exchanges that run. Should it live after all, it has something to announce."""
        self._file.execute("DELETE FROM nodes WHERE node = ?", (node,))
        rows = self._file.execute("SELECT exchange_id FROM holds WHERE node = ? AND closed_at IS NULL", (node,))
        return {row[0] for row in rows}

    def _released_since(self, told: Hold, looked: OverdueReport) -> bool:
        """It was there, and is not: the ledger has it."""
        return told.exchange_id in looked.ids and looked.generation == self._file.generation

    def _restore(self, told: Hold, *, counts: bool) -> None:
        """Hold what was lost. `counts`: in the last 60 s too; one that has ended may have done so all the time."""
        second = int(min(told.at or self._unix_time(), self._unix_time()))
        with self._gates() as gates:
            self._keep([told], second)
            gates.move(told.counters, told.nusd, 1, 0)
            states = gates.states(told.counters)  # read also where nothing counts: a gate that is new gets its row
            if counts:
                gates.count(states, second, 1, told.tokens)

    # -- sums

    def cursor(self) -> int | None:
        """See BudgetStore."""
        row = self._file.execute("SELECT cursor FROM life").fetchone()
        if row is None:
            raise Damaged("no life in it")
        return row[0]  # type: ignore[no-any-return]

    def seed(self, sums: Sequence[SpendTotal]) -> None:
        """See BudgetStore."""
        cursor = self.cursor()
        floor_us = self._floor_us() if cursor is None else cursor
        lives = {"", self._file.generation}
        heeded = [one for one in sums if self._readings.end(one.gate_id) in lives and one.as_of_us >= floor_us]
        if cursor is None and heeded:
            self._file.execute("UPDATE life SET cursor = ?", (min(one.as_of_us for one in heeded),))
        for one in heeded:
            self._file.execute(_SEED, (one.gate_id, one.since, one.nusd, one.as_of_us))

    def absorb(self, after_us: int, changes: Sequence[SpendDelta], until_us: int) -> bool:
        """See BudgetStore."""
        if self.cursor() != after_us:
            return False
        added = self._additions(changes).items()
        self._file.executemany(_SPEND, [(nusd, gate_id) for gate_id, nusd in added])
        self.release(list({change.exchange_id for change in changes}))
        self._file.execute("UPDATE life SET cursor = ?", (until_us,))
        return True

    def _additions(self, changes: Iterable[SpendDelta]) -> dict[str, int]:
        """What is added to which gate."""
        alike: dict[tuple[str, ...], list[SpendDelta]] = {}
        for change in changes:
            alike.setdefault(change.gate_ids, []).append(change)
        added: dict[str, int] = {}
        for gate_ids, some in alike.items():
            for gate_id, since, as_of_us in rows_of(self._file, _SELECT_SEEDED, gate_ids):
                new = [one.nusd for one in some if since <= one.started_at and as_of_us < one.settled_at_us]
                added[gate_id] = added.get(gate_id, 0) + sum(new)
        return added

    def _floor_us(self) -> int:
        """How far the ledger was followed before all sums were forgotten: what was released then is in no older sum."""
        floor_us, until = self._file.execute("SELECT floor_us, floor_until FROM life").fetchone()
        return floor_us if self._unix_time() < until else -1

    def forget_sums(self) -> None:
        """See BudgetStore."""
        cursor = self.cursor()
        if cursor is not None:
            floor = max(cursor, self._floor_us()), self._unix_time() + FLOOR_S
            self._file.execute("UPDATE life SET cursor = NULL, floor_us = ?, floor_until = ?", floor)
        # Where requests still count, and something is held, the gate stays; others are made again when needed.
        self._file.execute("DELETE FROM gates WHERE open + closed = 0 AND counted IS NULL")
        self._file.execute("UPDATE gates SET since = NULL, spent = NULL, as_of_us = NULL")

    def overdue(self, older_than_s: float) -> list[str]:
        """See BudgetStore."""
        before = self._unix_time() - older_than_s
        rows = self._file.execute("SELECT exchange_id FROM holds WHERE closed_at < ? ORDER BY closed_at", (before,))
        return [row[0] for row in rows]

    def counter_states(self, gate_ids: Collection[str] | None) -> list[CounterState]:
        """See BudgetStore."""
        if gate_ids is None:
            rows = self._file.execute(_STANDINGS + " ORDER BY gate_id").fetchall()
        else:
            rows = []
            for gate_id in sorted(set(gate_ids)):
                rows += self._file.execute(_STANDINGS + " AND gate_id = ?", (gate_id,)).fetchall()
        return [CounterState(gate_id, since or 0.0, *numbers) for gate_id, since, *numbers in rows]
