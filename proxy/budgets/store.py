"""The interface of the stores of reservations and spend totals: SQLite on one machine, Redis on many.

Invariants: A request is checked and reserved at all of its limit counters in one atomic step, or at none. A store is a
cache: spend is seeded from the ledger and follows it, and every node re-announces its own reservations. After a loss of
all data, no limit is exceeded, and no key stays locked out.

Spend changes only by `seed` and `absorb`. Both carry times of the ledger's clock: a spend total is complete up to a
known settling transaction, so no entry is counted twice or missed, whichever node delivers it, and however often.

The counter of a quota counts requests or tokens. A reservation has an amount for each of these among its counters
(`Reservation.amounts`), and reserves its money at all others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from proxy.billing.reservation import NO_AMOUNTS, CounterState, Reservation, SpendDelta, SpendTotal, Verdict


class BudgetsUnavailable(OSError):  # noqa: N818  named like the other `…Unavailable`
    """The store cannot be used; the failed call may have taken effect."""


class BudgetsIncomplete(BudgetsUnavailable):
    """The store has lost data, and waits until nodes have announced their reservations again."""


class OwnReservations(msgspec.Struct, frozen=True):
    """A snapshot of a node's own reservations."""

    open: Sequence[Reservation]
    """reservations of running exchanges, at their quotes"""
    closed: Sequence[Reservation]
    """reservations of ended exchanges without a known entry in the ledger, at their charges"""
    reserving: Collection[str]
    """exchanges whose `reserve` call is running: their reservations in the store stay unchanged"""


class BudgetStore(Protocol):
    """One node's handle of the store. Every method but `close_soon` and `aclose` raises BudgetsUnavailable."""

    def time(self) -> float:
        """Unix time by the clock that all nodes share. It decides when a window begins, and to which window an exchange
        belongs."""

    async def reserve(self, reservation: Reservation) -> Verdict:
        """Check every counter, and reserve at all of them or none. Checks of a counter, in this order: seeded for its
        `since` (if money is bounded); spent + reserved + its amount <= nusd_max; requests and tokens of the last 60 s;
        open < parallel. Idempotent per exchange: a repeated call is granted, and reserves nothing more."""

    async def grow(self, exchange_id: str, nusd: int, amounts: Mapping[str, int] = NO_AMOUNTS) -> bool:
        """Raise the reservation of a running exchange to `nusd`, and to these amounts at the counters of its quotas,
        even beyond the budget; no amount is lowered. True if then spent + reserved <= nusd_max at each of its
        counters. True for an unknown exchange: its node announces it later."""

    async def close(self, ended: Sequence[Reservation]) -> None:
        """Record ended exchanges of this node. Each stays reserved at its charge and amounts until `absorb` delivers
        its entry; one without any is released at once. Its actual tokens replace the quoted ones. Unknown exchanges are
        ignored."""

    def close_soon(self, ended: Sequence[Reservation], otherwise: Callable[[Sequence[Reservation]], None]) -> None:
        """Do the work of `close` for a few exchanges, within milliseconds and before any later `reserve` of this node.
        If that is not possible, call `otherwise` with them, immediately or later. Never raises."""

    async def heartbeat(self) -> bool:
        """False if the store may have lost data of this node since its last `announce`: call `announce` again. Called
        about every second; each call is also the node's sign of life."""

    async def resumes(self) -> bool:
        """True if the store still has all reservations of this node's last process, unchanged: then requests may be
        admitted before `announce`. False: the store may lack some."""

    async def announce(self, own: Callable[[], OwnReservations]) -> None:
        """Replace this node's reservations in the store by those of `own`, without checks. `own` is called after the
        store was read, so that a reservation made meanwhile is not treated as orphaned. A closed reservation that `own`
        lacks has its entry in the ledger: it stays until `absorb` or `release`."""

    async def abandon(self, node: str, spared: Collection[str]) -> int:
        """Release the open reservations of a dead node, and return their number. The exchanges `spared` are closed at
        their reserved amounts instead: the ledger has their entries, and `absorb` will deliver them."""

    async def seed(self, sums: Sequence[SpendTotal]) -> None:
        """Write spend totals of the ledger. A total is ignored if it is older than the cursor, or was read for an
        earlier generation of the store: then the counter stays unchanged, and the next `reserve` needs another read."""

    async def cursor(self) -> int | None:
        """The ledger's time (`SpendDelta.settled_at_us`) up to which all entries are absorbed; None: no counter is
        seeded."""

    async def absorb(self, after_us: int, changes: Sequence[SpendDelta], until_us: int) -> bool:
        """Apply all entries settled in (after_us, until_us]. An entry is added at each of its seeded counters, unless
        the counter's `since` is after the exchange's start, or its seed includes the entry. The exchange's reservation
        is released. Then the cursor is `until_us`. False, without effect, if the cursor is not `after_us`."""

    async def lead(self, for_s: float) -> bool:
        """True: this node follows the ledger from now on, for `for_s`, and other nodes stand by. After a loss of data,
        or a pause of this node, another node may follow at the same time: `absorb` still counts each entry once."""

    async def forget_sums(self, restored_to_us: int | None = None) -> None:
        """Drop all spend totals and the cursor, so that they are read from the ledger again. Reservations stay. For a
        minute, totals older than the cursor are ignored, because they may lack exchanges that were released.
        `restored_to_us`: the time of a ledger that was restored from a backup; the limit is this time instead of the
        cursor."""

    async def timeline(self) -> str | None:
        """The history of the ledger from which the spend totals come; None: unknown."""

    async def set_timeline(self, timeline: str) -> None:
        """Record the history of the ledger from which spend totals come from now on."""

    async def overdue(self, older_than_s: float) -> list[str]:
        """Exchanges of all nodes that were closed more than `older_than_s` ago, or before the clock was set back, and
        are still reserved."""

    async def release(self, exchange_ids: Collection[str]) -> None:
        """Release exchanges whose entries are in all spend totals."""

    async def counter_states(self, counter_ids: Collection[str] | None = None) -> list[CounterState]:
        """States of these counters (None: all counters), in the order of their ids; unknown counters are left out."""

    async def seeded(self, after: str, limit: int) -> tuple[list[str], str]:
        """A page of about `limit` ids of seeded counters, and the beginning of the next page (empty: this was the last
        page). `after`: the beginning of this page; empty: the first page. A counter that stays seeded is in some page.
        """

    async def aclose(self) -> None:
        """Close the store's connections and files. Never raises."""
