"""Holds and sums in plain Python, to compare stores with: lists are walked, nothing is kept twice, nothing is fast."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from proxy.billing.limits import LimitCounter
from proxy.billing.reservation import CounterState, DenialReason, Reservation, SpendDelta, SpendTotal

Answer = tuple[str, str, float | None] | None
"""why, which counter, how long to wait; None: granted"""


@dataclass
class Kept:
    reservation: Reservation
    node: str
    nusd: int
    tokens: int
    second: int
    closed_at: float | None = None
    amounts: Mapping[str, int] = field(default_factory=dict)

    def at(self, counter_id: str) -> int:
        return self.amounts.get(counter_id, self.nusd)


@dataclass
class Counted:
    """A request of the last 60 s, at one counter."""

    exchange_id: str
    second: int
    tokens: int


@dataclass
class Model:
    """What a store must know, having been told the same."""

    reservations: dict[str, Kept] = field(default_factory=dict)
    sums: dict[str, SpendTotal] = field(default_factory=dict)
    counted: dict[str, list[Counted]] = field(default_factory=dict)
    cursor: int | None = None
    floor: tuple[int, float] = -1, 0.0
    """the cursor before sums were forgotten, and until when it counts"""

    def spent(self, counter: LimitCounter) -> int | None:
        """None: not known for its window."""
        found = self.sums.get(counter.counter_id)
        return None if found is None or found.since != counter.since else found.amount

    def at(self, counter_id: str) -> list[Kept]:
        return [
            one
            for one in self.reservations.values()
            if counter_id in {counter.counter_id for counter in one.reservation.counters}
        ]

    def reserved(self, counter_id: str) -> int:
        return sum(one.at(counter_id) for one in self.at(counter_id))

    def running(self, counter_id: str) -> int:
        return sum(one.closed_at is None for one in self.at(counter_id))

    def unseeded(self, reservation: Reservation) -> tuple[LimitCounter, ...]:
        if reservation.exchange_id in self.reservations:
            return ()
        return tuple(
            counter for counter in reservation.counters if counter.nusd_max is not None and self.spent(counter) is None
        )

    def window(self, counter_id: str, now: float) -> list[Counted]:
        return [one for one in self.counted.get(counter_id, []) if abs(one.second - int(now)) <= 60]

    def reserve(self, reservation: Reservation, node: str, now: float) -> Answer:
        """Of a hold that nothing is unseeded for."""
        if reservation.exchange_id in self.reservations:
            return None
        failures = [one for counter in reservation.counters for one in self._failures(reservation, counter, now)]
        if failures:
            waits_s = [wait_s for _, _, wait_s in failures if wait_s is not None]
            return *failures[0][:2], max(waits_s) if len(waits_s) == len(failures) else None
        self.reservation(reservation, node, int(now))
        return None

    def reservation(self, reservation: Reservation, node: str, second: int, *, counts: bool = True) -> None:
        self.reservations[reservation.exchange_id] = Kept(
            reservation, node, reservation.nusd, reservation.tokens, second, amounts=reservation.amounts
        )
        for counter in reservation.counters:
            if counts and (counter.rpm, counter.tpm) != (None, None):
                self.counted.setdefault(counter.counter_id, []).append(
                    Counted(reservation.exchange_id, second, reservation.tokens)
                )

    def grow(self, exchange_id: str, nusd: int, amounts: Mapping[str, int]) -> bool:
        """True if it fits."""
        one = self.reservations.get(exchange_id)
        if one is None or one.closed_at is not None:
            return True
        one.nusd = max(nusd, one.nusd)
        one.amounts = {name: max(amount, one.amounts[name]) for name, amount in amounts.items()}
        return all(
            counter.nusd_max is None
            or (spent := self.spent(counter)) is None
            or spent + self.reserved(counter.counter_id) <= counter.nusd_max
            for counter in one.reservation.counters
        )

    def close(self, ended: Reservation, now: float) -> None:
        exchange_id, nusd, tokens = ended.exchange_id, ended.nusd, ended.tokens
        one = self.reservations.get(exchange_id)
        if one is None:
            return
        for counter in one.reservation.counters:
            counted = [each for each in self.window(counter.counter_id, now) if each.exchange_id == exchange_id]
            # Twice there: its node was taken for dead and announced it anew. The first one counts until it leaves.
            for request in counted[-1:]:
                request.tokens = tokens
        one.nusd, one.tokens, one.amounts = nusd, tokens, ended.amounts
        one.closed_at = now if one.closed_at is None else one.closed_at
        if ended.is_free:
            del self.reservations[exchange_id]

    def announce(
        self,
        node: str,
        running: Iterable[Reservation],
        closed: Iterable[Reservation],
        asking: Collection[str],
        now: float,
    ) -> None:
        named = set(asking)
        for reservation in running:
            named.add(reservation.exchange_id)
            if (one := self.reservations.get(reservation.exchange_id)) is None:
                self.reservation(reservation, node, int(min(reservation.at, now)))
            else:
                one.node, one.nusd, one.closed_at, one.amounts = node, reservation.nusd, None, reservation.amounts
        for reservation in closed:
            named.add(reservation.exchange_id)
            if reservation.exchange_id not in self.reservations and not reservation.is_free:
                self.reservation(reservation, node, int(now), counts=False)
            self.close(reservation, now)
            if reservation.exchange_id in self.reservations:
                self.reservations[reservation.exchange_id].node = node
        ran = [(name, one) for name, one in self.reservations.items() if (one.node, one.closed_at) == (node, None)]
        self.release([name for name, _ in ran if name not in named])

    def abandon(self, node: str, spared: Collection[str], now: float) -> int:
        """How many."""
        for name, one in self.reservations.items():
            if (one.node, one.closed_at) == (node, None) and name in spared:
                one.closed_at = now
        found = [
            name
            for name, one in self.reservations.items()
            if (one.node, one.closed_at) == (node, None) and name not in spared
        ]
        self.release(found)
        return len(found)

    def release(self, exchange_ids: Iterable[str]) -> None:
        for exchange_id in exchange_ids:
            self.reservations.pop(exchange_id, None)

    def seed(self, sums: Sequence[SpendTotal], now: float) -> None:
        if self.cursor is None:
            sums = [one for one in sums if one.as_of_us >= self.floor[0] or now >= self.floor[1]]
            self.cursor = min((one.as_of_us for one in sums), default=None)
        for one in sums:
            there = self.sums.get(one.counter_id)
            newer = there is not None and there.since == one.since and there.as_of_us > one.as_of_us
            if self.cursor is not None and one.as_of_us >= self.cursor and not newer:
                self.sums[one.counter_id] = one

    def absorb(self, after_us: int, changes: Sequence[SpendDelta], until_us: int) -> bool:
        """True if that was where it was."""
        if self.cursor != after_us:
            return False
        for change in changes:
            for counter_id in (*change.counter_ids, *change.amounts):
                one = self.sums.get(counter_id)
                if one is not None and one.since <= change.started_at and one.as_of_us < change.settled_at_us:
                    self.sums[counter_id] = SpendTotal(
                        counter_id, one.since, one.amount + change.amount_at(counter_id), one.as_of_us
                    )
            self.release([change.exchange_id])
        self.cursor = until_us
        return True

    def forget_sums(self, now: float, restored_to_us: int | None = None) -> None:
        if self.cursor is not None:
            before = max(self.cursor, self.floor[0] if now < self.floor[1] else -1)
            self.floor = before if restored_to_us is None else restored_to_us, now + 60
        self.sums.clear()
        self.cursor = None

    def lose(self) -> None:
        self.__init__()  # type: ignore[misc]

    def standings(self) -> list[CounterState]:
        known = {
            counter.counter_id for one in self.reservations.values() for counter in one.reservation.counters
        } | set(self.sums)
        return [self._standing(counter_id) for counter_id in sorted(known)]

    def overdue(self, older_than_s: float, now: float) -> list[str]:
        ended = [(one.closed_at, name) for name, one in self.reservations.items() if one.closed_at is not None]
        return [name for at, name in ended if at < now - older_than_s]

    def _standing(self, counter_id: str) -> CounterState:
        one, running = self.sums.get(counter_id), self.running(counter_id)
        return CounterState(
            counter_id,
            0.0 if one is None else one.since,
            None if one is None else one.amount,
            self.reserved(counter_id),
            running,
            len(self.at(counter_id)) - running,
        )

    def _failures(
        self, reservation: Reservation, counter: LimitCounter, now: float
    ) -> Iterable[tuple[str, str, float | None]]:
        requests = self.window(counter.counter_id, now)
        if (
            counter.nusd_max is not None
            and (self.spent(counter) or 0) + self.reserved(counter.counter_id) + reservation.amount_at(counter)
            > counter.nusd_max
        ):
            yield DenialReason.MONEY, counter.counter_id, None
        if counter.rpm is not None and len(requests) + 1 > counter.rpm:
            yield (
                DenialReason.REQUESTS,
                counter.counter_id,
                self._wait_s(counter, reservation, DenialReason.REQUESTS, now),
            )
        if counter.tpm is not None and sum(one.tokens for one in requests) + reservation.tokens > counter.tpm:
            yield DenialReason.TOKENS, counter.counter_id, self._wait_s(counter, reservation, DenialReason.TOKENS, now)
        if counter.parallel is not None and self.running(counter.counter_id) >= counter.parallel:
            yield DenialReason.PARALLEL, counter.counter_id, None

    def _wait_s(self, counter: LimitCounter, reservation: Reservation, why: DenialReason, now: float) -> float | None:
        """Tried second by second."""
        requests = self.window(counter.counter_id, now)
        for later in sorted({one.second + 61 for one in requests}):
            left = [one for one in requests if one.second + 60 >= later]
            if why is DenialReason.REQUESTS and counter.rpm is not None and len(left) + 1 <= counter.rpm:
                return later - now
            if (
                why is DenialReason.TOKENS
                and counter.tpm is not None
                and sum(one.tokens for one in left) + reservation.tokens <= counter.tpm
            ):
                return later - now
        return None
