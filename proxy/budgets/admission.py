"""Whether a request may go on, and what its exchange holds until it is settled.

Law: no key has a way around this. What no level limits is not held anywhere; everything else is checked and held in one
step before the exchange is opened, and closed when its record is written. A client waits for one answer of the store,
once; whatever else there is to tell the store is told behind its back, in the order in which it happened.

Where the store is down, a key that may go on by its own policy does so within this node's allowance; what it holds
meanwhile is announced when the store is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Protocol

from msgspec import structs

from proxy.billing.keys import ApiKey
from proxy.billing.limits import LimitCounter, OnStoreOutage, ResolvedLimits, Scope, resolve_limits
from proxy.billing.reservation import DenialReason, Denied, Granted, Hold, LimitLevel, Unseeded
from proxy.budgets.store import BudgetStore, BudgetsUnavailable, OwnHolds
from proxy.foundation.outage import Listener, Outage

# How often the store is asked whether it still has what it was told.
LOOK_S = 0.5
# Ends of exchanges that are told in one go.
ENDED_MAX = 500
# So many of those that ended are looked for in the ledger at once; and no sooner after they began, because whoever
# follows the ledger mostly says by then that it has them.
FORGET_MAX, FORGET_S = 1_000, 5.0
# A store that took so long to fail is left alone as long again: nobody waits for it in vain.
HANGS_S = 1.0
# Keys whose gates are at hand.
PASSAGES_MAX = 4_096
# A gate that cannot be seeded in so many tries is moving faster than the ledger can be read: it is taken for down.
SEED_TRIES = 3
# As long as a client waits for the ledger to say what was spent.
ANSWER_S = 5.0


class Observer(Listener, Protocol):
    """Who wants to know: metrics, and the log. Of outages of the store, too."""

    def denied(self, why: str) -> None:
        """A request was refused."""


class Reservation:
    """What one exchange holds. `closed` exactly once."""

    __slots__ = ("_admission", "_growing", "hold", "levels", "on_short", "spends")

    def __init__(self, admission: Admission, hold: Hold, levels: Sequence[LimitLevel], *, spends: bool) -> None:
        self.hold = hold
        self.spends = spends
        """money is limited"""
        self.levels = levels
        """none where the store was down"""
        self.on_short: Callable[[], None] | None = None
        """called once, when it has grown beyond what is left"""
        self._admission = admission
        self._growing = False

    def grow(self, nusd: int) -> None:
        """The exchange has cost so much by now. Hot: does nothing until that is more than it holds."""
        if nusd > self.hold.nusd and self.hold.counters and not self._growing:
            self._growing = True
            # A quarter more, so that a long stream does not ask at each of its pieces.
            self.hold = structs.replace(self.hold, nusd=nusd + nusd // 4)
            self._admission.grow(self)

    def grown(self, *, fits: bool) -> None:
        """The store knows."""
        self._growing = False
        if not fits and self.on_short is not None:
            on_short, self.on_short = self.on_short, None
            on_short()

    def close(self, nusd: int, tokens: int) -> None:
        """The exchange has ended and is charged so much."""
        self.on_short = None
        self._admission.close(self, nusd, tokens)


class Admission:
    """One node's. `remember` and `announce` before the first request, then `run` it."""

    def __init__(
        self,
        store: BudgetStore,
        *,
        seed: Callable[[Sequence[LimitCounter]], Awaitable[None]],
        settled: Callable[[Sequence[str]], Awaitable[Collection[str]]],
        tidy: Callable[[], Awaitable[None]],
        unix_time: Callable[[], float],
        when_down: OnStoreOutage,
        allowance_nusd: int,
        observer: Observer,
    ) -> None:
        """`seed`: reads from the ledger what was spent, and tells the store. `settled`: which of these exchanges the
        ledger has. `tidy`: lets go of what is held and in the sums already. All raise OSError. `when_down`: the policy
        of keys with a budget that have none of their own. `allowance_nusd`: what all keys together may hold and spend
        here during one outage of the store."""
        self._store = store
        self._seed = seed
        self._settled = settled
        self._tidy = tidy
        self._unix_time = unix_time
        self._when_down = when_down
        self._allowance_nusd = allowance_nusd
        self._observer = observer
        self._passages: dict[str, tuple[Sequence[Scope], ResolvedLimits]] = {}
        self._held: dict[str, Reservation] = {}
        self._closed: dict[str, Hold] = {}
        """ended, at their charges; the ledger is not known to have them. Oldest first"""
        self._asking: set[str] = set()
        self._ending: list[Hold] = []
        """in this turn of the event loop"""
        self._ended: list[Hold] = []
        """to be told to the store"""
        self._wakeup = asyncio.Event()
        self._growths: set[asyncio.Task[None]] = set()
        self._look_at = 0.0
        self._unannounced = False
        """something was let through that the store has not heard of"""
        self._hangs_until = 0.0
        """the store is not asked by those who wait for it; in the event loop's time"""
        self._outage = Outage(observer)
        self._allowed_nusd = 0
        """held and spent during this outage"""

    @property
    def held_nusd(self) -> int:
        """What running exchanges hold."""
        return sum(one.hold.nusd for one in self._held.values())

    # -- before an exchange

    async def admit(
        self, key: ApiKey, scopes: Sequence[Scope], exchange_id: str, *, nusd: int, tokens: int
    ) -> Reservation | Denied:
        """Hold this for the exchange at every level. `scopes`: those that limit anything. Nothing is ever held for one
        that is denied."""
        now = self._unix_time()
        passing = self._passage(key, scopes, now)
        hold = Hold(exchange_id, passing.counters, nusd, tokens, now)
        if not passing.counters:
            return Reservation(self, hold, (), spends=False)
        verdict = await self._asked(hold)
        if verdict is None:
            verdict = self._without_store(key, scopes, hold)
        if isinstance(verdict, Denied):
            self._observer.denied(verdict.why)
            return verdict
        reservation = self._held[exchange_id] = Reservation(self, hold, verdict.levels, spends=passing.spends)
        return reservation

    def _passage(self, key: ApiKey, scopes: Sequence[Scope], now: float) -> ResolvedLimits:
        known = self._passages.get(key.key_id)
        if known is not None and known[0] is scopes and known[1].since <= now < known[1].until:
            return known[1]
        if len(self._passages) >= PASSAGES_MAX:
            self._passages.clear()
        found = resolve_limits(scopes, now)
        self._passages[key.key_id] = scopes, found
        return found

    async def _asked(self, hold: Hold) -> Granted | Denied | None:
        """What the store says; None: nobody can say."""
        time = asyncio.get_running_loop().time
        began = time()
        if began < self._hangs_until:
            return None
        self._asking.add(hold.exchange_id)
        try:
            verdict = await self._store.reserve(hold)
            if isinstance(verdict, Unseeded):
                verdict = await self._seeded(hold, verdict)
        except BudgetsUnavailable as error:
            if time() - began >= HANGS_S:
                self._hangs_until = time() + HANGS_S
            self._failed(error)
        except OSError:  # the ledger is away, which others say; a TimeoutError is one, too
            pass
        except asyncio.CancelledError:  # it may be held all the same
            self._tell([_nothing(hold)])
            raise
        else:
            self._works()
            return verdict
        finally:
            self._asking.discard(hold.exchange_id)
        return None

    async def _seeded(self, hold: Hold, unseeded: Unseeded) -> Granted | Denied:
        for _ in range(SEED_TRIES):
            async with asyncio.timeout(ANSWER_S):  # the store itself answers within seconds, or fails
                await self._seed(unseeded.counters)
            verdict = await self._store.reserve(hold)
            if not isinstance(verdict, Unseeded):
                return verdict
            unseeded = verdict
        raise OSError("what was spent could not be read from the ledger in time")

    def _without_store(self, key: ApiKey, scopes: Sequence[Scope], hold: Hold) -> Granted | Denied:
        """Go on by the key's policy, within the allowance."""
        spends = any(scope.limits.spends for scope in scopes)
        policy = key.when_down or (self._when_down if spends else OnStoreOutage.OPEN)
        if policy is OnStoreOutage.OPEN and self._allowed_nusd + hold.nusd <= self._allowance_nusd:
            self._allowed_nusd += hold.nusd
            self._unannounced = True
            return Granted(())
        # An answer may have been lost, and not the reservation: what is held for nobody is let go.
        self._tell([_nothing(hold)])
        return Denied(DenialReason.UNKNOWN, hold.counters[0].gate_id, None, ())

    # -- while it runs, and after

    def grow(self, reservation: Reservation) -> None:
        """Tell the store that a running exchange holds more than it did."""
        task = asyncio.get_running_loop().create_task(self._grow(reservation))
        self._growths.add(task)
        task.add_done_callback(self._growths.discard)

    async def _grow(self, reservation: Reservation) -> None:
        hold = reservation.hold
        fits = True  # where nobody can say, what runs goes on
        try:
            fits = await self._store.grow(hold.exchange_id, hold.nusd)
        except OSError as error:
            self._failed(error)
        reservation.grown(fits=fits)

    def close(self, reservation: Reservation, nusd: int, tokens: int) -> None:
        """It ended."""
        hold = reservation.hold
        if self._held.pop(hold.exchange_id, None) is None:
            return
        ended = Hold(hold.exchange_id, hold.counters, nusd if reservation.spends else 0, tokens, hold.at)
        if ended.nusd:
            self._closed[hold.exchange_id] = ended
        self._ending.append(ended)
        if len(self._ending) == 1:  # those that end in the same turn are told together
            asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        ending, self._ending = self._ending, []
        if ending:
            self._store.close_soon(ending, self._tell)

    def remember(self, ended: Iterable[Hold]) -> None:
        """What earlier runs of this node ended, and the ledger is not known to have."""
        self._closed.update((hold.exchange_id, hold) for hold in ended)

    def _tell(self, ended: Iterable[Hold]) -> None:
        self._ended += ended
        self._wakeup.set()

    # -- telling the store

    async def run(self) -> None:
        """For ever: tells the store what ended, and all again when it may have forgotten. Ends by being cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._wakeup.wait()
            await self._tried(self._tell_ended)
            await self._tried(self._look)
            if self._outage.lasts:
                await asyncio.sleep(LOOK_S)

    async def announce(self) -> None:
        """Make the store's holds of this node what this node knows. Raises BudgetsUnavailable."""
        self._unannounced = False
        try:
            await self._store.announce(self._own)
        except BaseException:
            self._unannounced = True
            raise
        with suppress(OSError):  # of what had ended, the ledger may have told meanwhile; if not now, then soon
            await self._tidy()

    async def aclose(self) -> None:
        """Tell what is left to tell, and let go."""
        self._end()
        for task in list(self._growths):
            task.cancel()
        await self._tried(self._tell_ended)
        await self._store.aclose()

    async def _look(self) -> None:
        """At most once in LOOK_S."""
        now = asyncio.get_running_loop().time()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        if self._unannounced or not await self._store.heartbeat():
            await self.announce()
        await self._forget()

    def forget(self, exchange_ids: Iterable[str]) -> None:
        """The ledger has these."""
        for exchange_id in exchange_ids:
            self._closed.pop(exchange_id, None)

    async def _forget(self) -> None:
        """Those of the oldest that the ledger has, page after page as long as it has all of one."""
        known = True
        while known and (oldest := self._overdue()):
            try:
                settled = await self._settled(oldest)
            except OSError:  # the ledger is away, which others say
                return
            self.forget(settled)
            known = len(settled) == len(oldest)

    def _overdue(self) -> list[str]:
        now = self._unix_time()
        oldest = islice(self._closed.values(), FORGET_MAX)
        return [one.exchange_id for one in oldest if abs(now - one.at) >= FORGET_S]  # also if the clock was put back

    async def _tell_ended(self) -> None:
        self._wakeup.clear()
        while self._ended:
            telling = self._ended[:ENDED_MAX]
            await self._store.close(telling)
            del self._ended[: len(telling)]

    async def _tried(self, what: Callable[[], Awaitable[None]]) -> None:
        try:
            await what()
        except Exception as error:  # noqa: BLE001  the store is away, or a bug: to be seen, not to end all telling
            self._failed(error)
        else:
            self._works()

    def _own(self) -> OwnHolds:
        """At one instant. What ended for nothing, and was not told yet, is no longer held by anybody."""
        return OwnHolds([one.hold for one in self._held.values()], list(self._closed.values()), frozenset(self._asking))

    def _failed(self, error: Exception) -> None:
        if not self._outage.lasts:
            self._allowed_nusd = 0
        self._outage.began(error)

    def _works(self) -> None:
        if not self._ended:
            self._outage.over()


def _nothing(hold: Hold) -> Hold:
    """It ended, and is charged nothing."""
    return structs.replace(hold, nusd=0, tokens=0)
