"""Where holds and sums are kept, as admission sees it. Two stores carry it: SQLite on one machine, Redis on many.

Law: a request is checked against all of its gates and held at all of them in one atomic step, or at none. Whatever is
kept here is a cache: what was spent is seeded from the ledger and follows it; what is held is announced again by the
node that holds it. Losing all of it neither opens a gate nor locks one.

What is spent moves only by `seed` and `absorb`. Both carry the ledger's clock: a sum knows up to which settling
transaction it is complete, and no entry is counted twice or missed, whoever brings it, and however often.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import msgspec

from proxy.billing.reservation import CounterState, Hold, SpendDelta, SpendTotal, Verdict


class BudgetsUnavailable(OSError):  # noqa: N818  a state of the world, named like its siblings
    """Nobody can say what is left; what was asked may have happened."""


class OwnHolds(msgspec.Struct, frozen=True):
    """All that a node knows of its own holds at one instant."""

    open: Sequence[Hold]
    """of exchanges that run, at their quotes"""
    closed: Sequence[Hold]
    """of those that ended and that the ledger is not known to have, at their charges"""
    asking: Collection[str]
    """exchanges whose reservation is under way: whatever the store has of them stays as it is"""


class BudgetStore(Protocol):
    """One node's way to the holds and sums of all. Every method raises BudgetsUnavailable."""

    async def reserve(self, hold: Hold) -> Verdict:
        """Check every gate, and hold at all of them or none. For each gate, in this order: seeded for its `since`
        (where money is bounded); spent + held + nusd <= nusd_max; requests and tokens of the last 60 s;
        open < parallel. The same exchange asked for again: it is held once, and granted."""

    async def grow(self, exchange_id: str, nusd: int) -> bool:
        """Hold at least so much for a running exchange, whatever is left; True if spent + held <= nusd_max at each of
        its gates after that. True for an exchange that is not known: it is announced again when that is found out."""

    async def close(self, ended: Sequence[Hold]) -> None:
        """These exchanges of this node run no more: each is held at its charge, and its tokens count as they were,
        until `absorb` brings its entry; at once no longer if its `nusd` is 0. What is not known here is passed over."""

    def close_soon(self, ended: Sequence[Hold], otherwise: Callable[[Sequence[Hold]], None]) -> None:
        """The same for a few, within milliseconds, and before any later `reserve` of this node; where that is not
        possible, here or now, `otherwise` is called with them, now or soon. Never raises."""

    async def heartbeat(self) -> bool:
        """False if the store may have lost something this node told it, since the node last announced: then `announce`
        is due. Asked every second or so; it is also what tells the store that the node lives."""

    async def announce(self, own: Callable[[], OwnHolds]) -> None:
        """Make the store's holds of this node what the node knows, unchecked. `own` is asked after the store was looked
        at, so that nothing that began meanwhile is taken for a stranger. What ended, and the node knows no more, the
        ledger has: it stays until `absorb` has brought it, or `release`."""

    async def abandon(self, node: str, spared: Collection[str]) -> int:
        """Node is dead: release its open holds but for the exchanges `spared` (the ledger has their entries, and
        `absorb` will bring them: they have ended, at what they hold); how many that were."""

    async def seed(self, sums: Sequence[SpendTotal]) -> None:
        """What the ledger says was spent. One that is older than what the store has followed the ledger to, or was read
        for a store that has lost everything since, is passed over; then the gate stays as it was, and whoever needs it
        reads the ledger again."""

    async def cursor(self) -> int | None:
        """Up to which of the ledger's times (`Change.settled_at_us`) all entries are absorbed; None: nothing is
        seeded."""

    async def absorb(self, after_us: int, changes: Sequence[SpendDelta], until_us: int) -> bool:
        """All entries settled in (after_us, until_us] that count at any gate: each is added where the gate is seeded,
        its `since` is not after the exchange's start, and its seed is not newer; its exchange's hold is released.
        Then the cursor is `until_us`. False, and nothing happens, if the cursor is not `after_us`."""

    async def forget_sums(self) -> None:
        """No gate is seeded any more, and there is no cursor; holds stay. Everything is read from the ledger anew; a
        sum that was read before is still passed over, for a minute."""

    async def overdue(self, older_than_s: float) -> list[str]:
        """Exchanges, of all nodes, that were closed longer ago than this and are still held."""

    async def release(self, exchange_ids: Collection[str]) -> None:
        """Their entries are in every sum already: they are held no longer."""

    async def counter_states(self, gate_ids: Collection[str] | None = None) -> list[CounterState]:
        """How gates stand, in the order of their ids; None: all that are known."""

    async def aclose(self) -> None:
        """Let go of what it holds open. Never raises."""
