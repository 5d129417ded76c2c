"""The reads and writes of the budget store's SQLite file; each method runs within a transaction of `BudgetFile`.

Invariant: at every commit, `held` (reserved), `open` and `closed` of a counter are the sums over its reservations. The
table `amounts` has the amounts that they reserve at counters of quotas; at all others they reserve money.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

import msgspec

from proxy.billing.reservation import (
    NO_AMOUNTS,
    CounterState,
    DenialReason,
    Denied,
    Granted,
    Reservation,
    SpendDelta,
    SpendTotal,
    Unseeded,
    Verdict,
)
from proxy.budgets.seed_generations import SeedGenerations
from proxy.budgets.sqlite.counters import CounterTable, ResolvedLimitsTable, rows_of, stored_limits_of
from proxy.budgets.sqlite.file import BudgetFile, Damaged
from proxy.budgets.verdicts import bounds_reservations, levels, passes, verdict

# Inserts nothing if its set of counters is missing.
_INSERT_HOLD = "INSERT OR IGNORE INTO holds SELECT ?, ?, ?, ?, ?, NULL, passage FROM passages WHERE passage = ?"
_SELECT_HOLDS = (
    "SELECT exchange_id, nusd, tokens, second, closed_at IS NULL, passage"
    " FROM (VALUES ?*) CROSS JOIN holds ON exchange_id = column1"
)
_SELECT_SEEDED = (
    "SELECT gate_id, since, as_of_us FROM (VALUES ?*) CROSS JOIN gates ON gate_id = column1 WHERE spent IS NOT NULL"
)
_CLOSE_HOLD = "UPDATE holds SET nusd = ?, tokens = ?, closed_at = coalesce(closed_at, ?) WHERE exchange_id = ?"
_DELETE_HOLD = "DELETE FROM holds WHERE exchange_id = ?"
_COUNTER_STATES = (
    "SELECT gate_id, since, spent, held, open, closed FROM gates WHERE (spent IS NOT NULL OR open + closed > 0)"
)
# Or closed before the clock was set back.
_OVERDUE = "SELECT exchange_id FROM holds WHERE closed_at < ? OR closed_at > ? ORDER BY closed_at"
_SPEND = "UPDATE gates SET spent = spent + ? WHERE gate_id = ?"
# A newer spend total of the same window stays.
_SEED = (
    "INSERT INTO gates VALUES (?, ?, ?, ?, 0, 0, 0, NULL) ON CONFLICT (gate_id) DO UPDATE"
    " SET since = excluded.since, spent = excluded.spent, as_of_us = excluded.as_of_us"
    " WHERE spent IS NULL OR since <> excluded.since OR as_of_us <= excluded.as_of_us"
)

# Not with the other tables: files that were made before these are used on.
_MAKE_ANNOUNCED = "CREATE TABLE IF NOT EXISTS announcements (node TEXT PRIMARY KEY, announced TEXT NOT NULL)"
_MAKE_AMOUNTS = (
    "CREATE TABLE IF NOT EXISTS amounts (exchange_id TEXT NOT NULL, gate_id TEXT NOT NULL, amount INTEGER NOT NULL,"
    " PRIMARY KEY (exchange_id, gate_id)) WITHOUT ROWID"
)
_MAKE_TIMELINE = "CREATE TABLE IF NOT EXISTS timeline (one INTEGER PRIMARY KEY, timeline TEXT NOT NULL)"

_SELECT_AMOUNTS = "SELECT exchange_id, gate_id, amount FROM (VALUES ?*) CROSS JOIN amounts ON exchange_id = column1"
_WRITE_AMOUNT = "INSERT OR REPLACE INTO amounts VALUES (?, ?, ?)"
_DELETE_AMOUNTS = "DELETE FROM amounts WHERE exchange_id = ?"

# No read of the ledger takes so long. After that, an older ledger (restored from a backup) is accepted.
FLOOR_S = 60.0

_GRANTED = Granted(())

_counters_of = attrgetter("counters")


class _StoredReservation(msgspec.Struct, frozen=True, gc=False):
    """A row of `holds`."""

    exchange_id: str
    nusd: int
    tokens: int
    second: int
    """the rate bucket of the reservation's tokens"""
    open: int
    """1 while the exchange runs, else 0"""
    limits_id: int
    """id of the reservation's set of counters"""


class AlreadyReserved(Exception):  # noqa: N818  a state, not an error
    """One of several exchanges is reserved already; nothing was changed."""


@dataclass(frozen=True, slots=True)
class StoredExchanges:
    """The exchanges of a node in the file, at the beginning of an announcement."""

    ids: frozenset[str]
    generation: str


class BudgetTables:
    """The tables, for one node. Methods with the name of a method of BudgetStore have its contract."""

    def __init__(self, file: BudgetFile, node: str, unix_time: Callable[[], float]) -> None:
        self._file = file
        self._node = node
        self._unix_time = unix_time
        self._seed_generations = SeedGenerations()
        self._limits = ResolvedLimitsTable(file)

    # -- one exchange

    def batch(self, ended: Sequence[Reservation], requests: Sequence[Reservation]) -> list[Verdict | None]:
        """Close `ended`, then decide on `requests` in order. None: the verdict depends on the reservations of other
        processes, and the file is still warming up. Raises AlreadyReserved."""
        now = self._unix_time()
        with CounterTable(self._file, now) as counters:
            self._close(ended, counters)
            new: list[Reservation] = []
            verdicts: list[Verdict | None] = []
            for _, group in groupby(requests, key=_counters_of):
                verdicts += self._verdicts(list(group), counters, now, new)
            if new and self._insert(new, int(now)) < len(new):
                raise AlreadyReserved
        return verdicts

    def reserve(self, reservation: Reservation) -> Verdict | None:
        """Decide on one exchange that may be reserved already."""
        if self._stored(reservation.exchange_id) is not None:
            return Granted(levels(self._counters().states(reservation.counters), self._unix_time()))
        return self.batch((), (reservation,))[0]

    def _verdicts(
        self, group: list[Reservation], counters: CounterTable, now: float, new: list[Reservation]
    ) -> Sequence[Verdict | None]:
        """Decide on requests with equal counters; granted ones are appended to `new`."""
        states = counters.states(group[0].counters)
        nusd, count = sum([reservation.nusd for reservation in group]), len(group)
        together = not self._warming and not group[0].amounts
        if not together or not all([passes(state, nusd, count) for state in states]):  # noqa: C419  half the time
            return [self._verdict(reservation, counters, now, new) for reservation in group]
        counters.move(group[0].counters, nusd, count, 0)
        new += group
        return [_GRANTED] * count

    def _verdict(
        self, reservation: Reservation, counters: CounterTable, now: float, new: list[Reservation]
    ) -> Verdict | None:
        states = counters.states(reservation.counters)
        decided = verdict(reservation, states, now)
        result = None if self._warming and _may_change(decided, reservation) else decided
        if isinstance(result, Granted):
            counters.move(reservation.counters, reservation.nusd, 1, 0, reservation.amounts)
            counters.count(states, int(now), 1, reservation.tokens)
            new.append(reservation)
        elif self._stored(reservation.exchange_id) is not None or any(
            one.exchange_id == reservation.exchange_id for one in new
        ):
            result = _GRANTED
        elif isinstance(result, Unseeded):
            self._seed_generations.begin(result.counters, self._file.generation)
        return Granted(levels(states, now)) if isinstance(result, Granted) else result

    def grow(self, exchange_id: str, nusd: int, amounts: Mapping[str, int]) -> bool:
        stored = self._stored(exchange_id)
        if stored is None or not stored.open:
            return True
        with self._counters() as counters:
            more = self._set_amounts(stored, amounts, shrink=False)
            if nusd > stored.nusd or any(more.values()):
                nusd = max(nusd, stored.nusd)
                self._file.execute("UPDATE holds SET nusd = ? WHERE exchange_id = ?", (nusd, exchange_id))
                counters.move(self._limits.counters(stored.limits_id), nusd - stored.nusd, 0, 0, more)
            states = counters.states(self._limits.counters(stored.limits_id))
        return all(
            state.counter.nusd_max is None
            or state.spent is None
            or state.spent + state.reserved <= state.counter.nusd_max
            for state in states
        )

    def close(self, ended: Sequence[Reservation]) -> None:
        with self._counters() as counters:
            self._close(ended, counters)

    def end(self, exchange_ids: Sequence[str]) -> None:
        """Close the holds of open exchanges, at the reserved amounts."""
        now = self._unix_time()
        with self._counters() as counters:
            running = [stored for stored in self._all_stored(exchange_ids) if stored.open]
            for stored in running:
                self._file.execute("UPDATE holds SET closed_at = ? WHERE exchange_id = ?", (now, stored.exchange_id))
                counters.move(self._limits.counters(stored.limits_id), 0, -1, 1)

    def release(self, exchange_ids: Sequence[str]) -> None:
        with self._counters() as counters:
            self._delete(self._all_stored(exchange_ids), counters)

    def release_open(self, exchange_ids: Sequence[str]) -> int:
        """Release the holds of open exchanges, and return their number."""
        with self._counters() as counters:
            running = [stored for stored in self._all_stored(exchange_ids) if stored.open]
            self._delete(running, counters)
        return len(running)

    @property
    def _warming(self) -> bool:
        return self._file.warm_until > 0.0 and self._file.warm_until > time.monotonic()

    def _counters(self) -> CounterTable:
        return CounterTable(self._file, self._unix_time())

    def _insert(self, reservations: Sequence[Reservation], second: int) -> int:
        """Insert open reservations, except for exchanges that have one; return the number of inserted ones."""
        limits = {id(reservation.counters): stored_limits_of(reservation.counters) for reservation in reservations}
        rows = [
            (
                reservation.exchange_id,
                self._node,
                reservation.nusd,
                reservation.tokens,
                second,
                limits[id(reservation.counters)].limits_id,
            )
            for reservation in reservations
        ]
        inserted = self._file.executemany(_INSERT_HOLD, rows).rowcount
        if inserted < len(rows):  # usually because the set of counters is new
            self._limits.insert(limits.values())
            inserted += self._file.executemany(_INSERT_HOLD, rows).rowcount
        if amounts := [(one.exchange_id, *pair) for one in reservations for pair in one.amounts.items()]:
            self._file.execute(_MAKE_AMOUNTS)
            self._file.executemany(_WRITE_AMOUNT, amounts)
        return inserted

    def _amounts(self, exchange_ids: Sequence[str]) -> dict[tuple[str, str], int]:
        """(Exchange, counter of a quota) → amount that the exchange has reserved there. The exchanges have quotas."""
        return {
            (one, counter_id): amount for one, counter_id, amount in rows_of(self._file, _SELECT_AMOUNTS, exchange_ids)
        }

    def _set_amounts(
        self, stored: _StoredReservation, amounts: Mapping[str, int], *, shrink: bool = True
    ) -> dict[str, int]:
        """Set the amounts that an exchange has reserved at the counters of its quotas. Returns counter id → difference,
        0 if there is none. Without `shrink`, no amount is lowered."""
        changes = dict.fromkeys([one.counter_id for one in self._limits.quotas(stored.limits_id)], 0)
        if changes and amounts:
            for (exchange_id, counter_id), before in self._amounts([stored.exchange_id]).items():
                amount = amounts.get(counter_id, before)
                changes[counter_id] = amount - before if shrink else max(amount - before, 0)
                self._file.execute(_WRITE_AMOUNT, (exchange_id, counter_id, before + changes[counter_id]))
        return changes

    def _stored(self, exchange_id: str) -> _StoredReservation | None:
        return next(iter(self._all_stored([exchange_id])), None)

    def _all_stored(self, exchange_ids: Sequence[str]) -> list[_StoredReservation]:
        return [
            _StoredReservation(*row) for row in rows_of(self._file, _SELECT_HOLDS, list(dict.fromkeys(exchange_ids)))
        ]

    def _close(self, ended: Iterable[Reservation], counters: CounterTable) -> None:
        by_id = {one.exchange_id: one for one in ended}
        self._end([(stored, by_id[stored.exchange_id]) for stored in self._all_stored(list(by_id))], counters)

    def _end(self, ended: Iterable[tuple[_StoredReservation, Reservation]], counters: CounterTable) -> None:
        """Close reservations at their charges; delete those without a charge."""
        now, charged, free = self._unix_time(), [], []
        moved: dict[int, list[int]] = {}
        for stored, one in ended:
            if one.tokens != stored.tokens and (rated := self._limits.rated(stored.limits_id)):
                counters.count(counters.states(rated), stored.second, 0, one.tokens - stored.tokens)
            if one.nusd == 0 and one.is_free:
                free.append(stored)
            else:
                charged.append((one.nusd, one.tokens, now, stored.exchange_id))
                if one.amounts:
                    quotas = self._limits.quotas(stored.limits_id)
                    counters.move(quotas, 0, 0, 0, self._set_amounts(stored, one.amounts))
                sums = moved.get(stored.limits_id) or moved.setdefault(stored.limits_id, [0, 0])
                sums[0] += one.nusd - stored.nusd
                sums[1] += stored.open
        if charged:
            self._file.executemany(_CLOSE_HOLD, charged)
        for limits_id, (nusd, running) in moved.items():
            quotas = self._limits.quotas(limits_id)
            moved_already = dict.fromkeys([one.counter_id for one in quotas], 0) if quotas else NO_AMOUNTS
            counters.move(self._limits.counters(limits_id), nusd, -running, running, moved_already)
        if free:
            self._delete(free, counters)

    def _delete(self, reservations: Sequence[_StoredReservation], counters: CounterTable) -> None:
        self._file.executemany(_DELETE_HOLD, [(stored.exchange_id,) for stored in reservations])
        groups: dict[int, list[_StoredReservation]] = {}
        for stored in reservations:
            groups.setdefault(stored.limits_id, []).append(stored)
        for limits_id, group in groups.items():
            nusd, running = sum([one.nusd for one in group]), sum([one.open for one in group])
            released = self._delete_amounts(limits_id, [one.exchange_id for one in group])
            counters.move(self._limits.counters(limits_id), -nusd, -running, running - len(group), released)

    def _delete_amounts(self, limits_id: int, exchange_ids: Sequence[str]) -> dict[str, int]:
        """Delete the amounts that these exchanges of one set have reserved at counters of quotas. Returns counter id →
        change."""
        released: dict[str, int] = dict.fromkeys([one.counter_id for one in self._limits.quotas(limits_id)], 0)
        if released:
            for (_, counter_id), amount in self._amounts(exchange_ids).items():
                released[counter_id] -= amount
            self._file.executemany(_DELETE_AMOUNTS, [(one,) for one in exchange_ids])
        return released

    # -- all reservations of a node

    def fencing_token(self) -> str | None:
        """The token of the node's last announcement; None: the token is lost, and later changes may be lost too."""
        row = self._file.execute("SELECT announced FROM nodes WHERE node = ?", (self._node,)).fetchone()
        return None if row is None else str(row[0])

    def is_announced(self) -> bool:
        """True if the node's last announcement was completed in this generation."""
        self._file.execute(_MAKE_ANNOUNCED)
        query = "SELECT count(*) FROM nodes JOIN announcements USING (node, announced) WHERE node = ?"
        return bool(self._file.execute(query, (self._node,)).fetchone()[0])

    def end_announcement(self, token: str) -> None:
        """Record that all reservations are announced."""
        self._file.execute(_MAKE_ANNOUNCED)
        self._file.execute("INSERT OR REPLACE INTO announcements VALUES (?, ?)", (self._node, token))

    def begin_announcement(self) -> tuple[StoredExchanges, str]:
        """The node's stored exchanges, and its new fencing token."""
        token = secrets.token_hex(8)
        self._file.execute("INSERT OR REPLACE INTO nodes VALUES (?, ?)", (self._node, token))
        self._limits.delete_unused()
        rows = self._file.execute("SELECT exchange_id FROM holds WHERE node = ?", (self._node,))
        return StoredExchanges(frozenset(row[0] for row in rows), self._file.generation), token

    def announce_open(self, reservations: Iterable[Reservation], before: StoredExchanges) -> None:
        """Write reservations of running exchanges, at their quotes."""
        for one in reservations:
            if (stored := self._stored(one.exchange_id)) is not None:
                self._file.execute(
                    "UPDATE holds SET node = ?, nusd = ?, closed_at = NULL WHERE exchange_id = ?",
                    (self._node, one.nusd, stored.exchange_id),
                )
                change = one.nusd - stored.nusd, 1 - stored.open, stored.open - 1
                with self._counters() as counters:
                    amounts = self._set_amounts(stored, one.amounts)
                    counters.move(self._limits.counters(stored.limits_id), *change, amounts)
            elif not self._released_since(one, before):
                self._restore(one, counts=True)

    def announce_closed(self, reservations: Iterable[Reservation], before: StoredExchanges) -> None:
        """Write reservations of ended exchanges, at their charges."""
        for one in reservations:
            if (stored := self._stored(one.exchange_id)) is not None:
                self._file.execute("UPDATE holds SET node = ? WHERE exchange_id = ?", (self._node, one.exchange_id))
                with self._counters() as counters:
                    self._end([(stored, one)], counters)
            elif not one.is_free and not self._released_since(one, before):
                self._restore(one, counts=False)
                self.close([one])

    def abandon(self, node: str) -> set[str]:
        """Delete another node's fencing token, and return its open exchanges. If the node is alive, it announces
        again."""
        self._file.execute("DELETE FROM nodes WHERE node = ?", (node,))
        rows = self._file.execute("SELECT exchange_id FROM holds WHERE node = ? AND closed_at IS NULL", (node,))
        return {row[0] for row in rows}

    def _released_since(self, reservation: Reservation, before: StoredExchanges) -> bool:
        """True if the reservation was stored before and is not now: the ledger has its entry."""
        return reservation.exchange_id in before.ids and before.generation == self._file.generation

    def _restore(self, reservation: Reservation, *, counts: bool) -> None:
        """Insert a lost reservation. `counts`: also in the rate windows, which may still include an ended exchange."""
        second = int(min(reservation.at or self._unix_time(), self._unix_time()))
        with self._counters() as counters:
            self._insert([reservation], second)
            counters.move(reservation.counters, reservation.nusd, 1, 0, reservation.amounts)
            states = counters.states(reservation.counters)  # also without `counts`: a new counter gets its row
            if counts:
                counters.count(states, second, 1, reservation.tokens)

    # -- spend totals

    def cursor(self) -> int | None:
        row = self._file.execute("SELECT cursor FROM life").fetchone()
        if row is None:
            raise Damaged("table life is empty")
        return row[0]  # type: ignore[no-any-return]

    def seed(self, sums: Sequence[SpendTotal]) -> None:
        cursor = self.cursor()
        floor_us = self._floor_us() if cursor is None else cursor
        valid, begun_in = {"", self._file.generation}, self._seed_generations.end
        accepted = [one for one in sums if begun_in(one.counter_id) in valid and one.as_of_us >= floor_us]
        if cursor is None and accepted:
            self._file.execute("UPDATE life SET cursor = ?", (min(one.as_of_us for one in accepted),))
        for one in accepted:
            self._file.execute(_SEED, (one.counter_id, one.since, one.amount, one.as_of_us))

    def absorb(self, after_us: int, changes: Sequence[SpendDelta], until_us: int) -> bool:
        if self.cursor() != after_us:
            return False
        added = self._additions(changes).items()
        self._file.executemany(_SPEND, [(nusd, counter_id) for counter_id, nusd in added])
        self.release(list({change.exchange_id for change in changes}))
        self._file.execute("UPDATE life SET cursor = ?", (until_us,))
        return True

    def _additions(self, changes: Iterable[SpendDelta]) -> dict[str, int]:
        """Counter id → the spend to add."""
        groups: dict[tuple[str, ...], list[SpendDelta]] = {}
        of_quotas: dict[str, list[tuple[SpendDelta, int]]] = {}
        for change in changes:
            groups.setdefault(change.counter_ids, []).append(change)
            for counter_id, amount in change.amounts.items():
                of_quotas.setdefault(counter_id, []).append((change, amount))
        added: dict[str, int] = {}
        for counter_id, since, as_of_us in rows_of(self._file, _SELECT_SEEDED, list(of_quotas)):
            of_quota = of_quotas[counter_id]
            new = [n for one, n in of_quota if since <= one.started_at and as_of_us < one.settled_at_us]
            added[counter_id] = sum(new)
        for counter_ids, group in groups.items():
            for counter_id, since, as_of_us in rows_of(self._file, _SELECT_SEEDED, counter_ids):
                new = [one.nusd for one in group if since <= one.started_at and as_of_us < one.settled_at_us]
                added[counter_id] = added.get(counter_id, 0) + sum(new)
        return added

    def _floor_us(self) -> int:
        """The earliest acceptable time of a spend total for FLOOR_S after `forget_sums`: an older total may lack
        released exchanges."""
        floor_us, until = self._file.execute("SELECT floor_us, floor_until FROM life").fetchone()
        return floor_us if self._unix_time() < until else -1

    def forget_sums(self, restored_to_us: int | None) -> None:
        cursor = self.cursor()
        if cursor is not None:
            floor_us = max(cursor, self._floor_us()) if restored_to_us is None else restored_to_us
            floor = floor_us, self._unix_time() + FLOOR_S
            self._file.execute("UPDATE life SET cursor = NULL, floor_us = ?, floor_until = ?", floor)
        # Counters with reservations or rate counts stay; others are inserted again when needed.
        self._file.execute("DELETE FROM gates WHERE open + closed = 0 AND counted IS NULL")
        self._file.execute("UPDATE gates SET since = NULL, spent = NULL, as_of_us = NULL")

    def timeline(self) -> str | None:
        self._file.execute(_MAKE_TIMELINE)
        row = self._file.execute("SELECT timeline FROM timeline").fetchone()
        return None if row is None else str(row[0])

    def set_timeline(self, timeline: str) -> None:
        self._file.execute(_MAKE_TIMELINE)
        self._file.execute("INSERT OR REPLACE INTO timeline VALUES (1, ?)", (timeline,))

    def overdue(self, older_than_s: float) -> list[str]:
        now = self._unix_time()
        rows = self._file.execute(_OVERDUE, (now - older_than_s, now + 1.0))
        return [row[0] for row in rows]

    def seeded(self, after: str, limit: int) -> list[str]:
        query = "SELECT gate_id FROM gates WHERE gate_id > ? AND spent IS NOT NULL ORDER BY gate_id LIMIT ?"
        return [row[0] for row in self._file.execute(query, (after, limit))]

    def counter_states(self, counter_ids: Collection[str] | None) -> list[CounterState]:
        if counter_ids is None:
            rows = self._file.execute(_COUNTER_STATES + " ORDER BY gate_id").fetchall()
        else:
            rows = []
            for counter_id in sorted(set(counter_ids)):
                rows += self._file.execute(_COUNTER_STATES + " AND gate_id = ?", (counter_id,)).fetchall()
        return [CounterState(counter_id, since or 0.0, *numbers) for counter_id, since, *numbers in rows]


def _may_change(result: Verdict, reservation: Reservation) -> bool:
    """True if the verdict may be wrong while processes announce: reservations may be missing, and the charge of a
    settled exchange may be both spent and reserved."""
    if isinstance(result, Denied):
        return result.why is DenialReason.MONEY
    return isinstance(result, Granted) and any(bounds_reservations(one) for one in reservation.counters)
