"""Admission of requests: a reservation at every limit, from admission until the exchange is settled.

Invariants: No request bypasses admission. A request without limits reserves nothing. Any other is checked and reserved
in one step before its exchange is opened, and closed when its record is written. A client waits for one reply of the
store; all other calls to the store run in the background, in chronological order.

During a store outage, keys without a budget are admitted unless they fail closed, and keys that fail open are admitted
within this node's allowance. Their reservations are announced to the store after the outage. Calls to the store never
wait for the ledger: a ledger that hangs delays no release.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice

from msgspec import structs

from proxy.billing.keys import ApiKey
from proxy.billing.limits import (
    NOTHING_MEASURED,
    LimitCounter,
    Measured,
    OnStoreOutage,
    ResolvedLimits,
    Scope,
    amounts_at,
    credit_counter_id,
    measured,
    resolve_limits,
    scope_of,
)
from proxy.billing.reservation import NO_AMOUNTS, DenialReason, Denied, Granted, LimitLevel, Reservation, Unseeded
from proxy.budgets.observers import AdmissionObserver
from proxy.budgets.outage_allowance import OutageAllowance
from proxy.budgets.store import BudgetsIncomplete, BudgetStore, BudgetsUnavailable, OwnReservations
from proxy.foundation.outage import Outage

# Interval of the check whether the store lost reservations of this node.
CHECK_S = 0.5
# Ended exchanges in one call to the store.
ENDED_MAX = 500
# Ended exchanges in one look-up in the ledger, and their least age: the follower reports most of them before that.
FORGET_MAX, FORGET_S = 1_000, 5.0
# If a call takes this long to fail, requests skip the store for the same time instead of waiting for it.
HANGS_S = 1.0
# Keys with cached limits.
CACHED_KEYS_MAX = 4_096
# After so many tries the spend changes faster than the ledger can be read: treated as an outage.
SEED_TRIES = 3
# The longest wait of a client for the reservations of unsettled records, after a start.
COUNTED_S = 3.0
# The longest wait of a client for a read of the ledger.
ANSWER_S = 5.0
_UNLIMITED = resolve_limits((), 0.0)
_ONE_REQUEST = partial(measured, 1, 0, 0)


class OpenReservation:
    """The reservation of a running exchange. `close` it exactly once."""

    __slots__ = ("_admission", "_growing", "allowed_nusd", "levels", "on_short", "reserved", "spends")

    def __init__(
        self, admission: Admission, reserved: Reservation, levels: Sequence[LimitLevel], *, spends: bool
    ) -> None:
        self.reserved = reserved
        self.spends = spends
        """True if money is limited"""
        self.levels = levels
        """remaining rates at admission; empty if the store was unavailable"""
        self.allowed_nusd: int | None = None
        """nUSD taken from the allowance for outages; None: the store admitted the exchange"""
        self.on_short: Callable[[], None] | None = None
        """called once, when the reservation exceeds a budget"""
        self._admission = admission
        self._growing = False

    def grow(self, nusd: int) -> None:
        """Record the cost so far. Called often: does nothing until the cost exceeds the reservation."""
        if nusd > self.reserved.nusd and self.reserved.counters and not self._growing:
            self._growing = True
            self.reserved = structs.replace(self.reserved, nusd=_with_more(nusd))
            self._admission.grow(self)

    def grow_quotas(self, so_far: Measured) -> None:
        """Record the tokens so far, as `grow` records the cost."""
        reserved = self.reserved
        amounts = amounts_at(reserved.counters, so_far)
        if not self._growing and any(amount > reserved.amounts[one] for one, amount in amounts.items()):
            self._growing = True
            more = {one: max(_with_more(amount), reserved.amounts[one]) for one, amount in amounts.items()}
            self.reserved = structs.replace(reserved, amounts=more)
            self._admission.grow(self)

    def grown(self, *, fits: bool) -> None:
        """The store has processed `grow`."""
        self._growing = False
        if not fits and self.on_short is not None:
            on_short, self.on_short = self.on_short, None
            on_short()

    def close(self, nusd: int, tokens: int, counted: Measured = NOTHING_MEASURED) -> None:
        """Record the end of the exchange, its charge, and its amounts at quotas."""
        self.on_short = None
        reserved = self.reserved
        if reserved.counters:
            amounts = amounts_at(reserved.counters, counted) if reserved.amounts else NO_AMOUNTS
            self._admission.close(self, nusd, tokens, amounts)


class ClosedReservations(dict[str, Reservation]):
    """The reservations of ended exchanges at their charges, by exchange id, oldest first. Each stays until it is in all
    spend totals."""

    def forget(self, exchange_ids: Iterable[str]) -> None:
        """Drop the reservations of exchanges that the ledger has."""
        for exchange_id in exchange_ids:
            self.pop(exchange_id, None)


class Admission:
    """Admission of one node. Call `resume` before the first request; then `remember`, `announce` and `run`."""

    def __init__(
        self,
        store: BudgetStore,
        closed: ClosedReservations,
        *,
        seed: Callable[[Sequence[LimitCounter]], Awaitable[None]],
        settled: Callable[[Sequence[str]], Awaitable[Collection[str]]],
        tidy: Callable[[], Awaitable[None]],
        on_store_outage: OnStoreOutage,
        allowance_nusd: int,
        observer: AdmissionObserver,
        next_grant: Callable[[str], Awaitable[float | None]] | None = None,
    ) -> None:
        """`seed`: writes the ledger's spend of these counters to the store. `settled`: filters the exchanges whose
        entries are in all spend totals, current and future. `tidy`: releases reservations of such. All raise OSError.
        `on_store_outage`: the policy of keys with a budget and no policy of their own. `allowance_nusd`: the most that
        all keys together may reserve and spend on this node during one outage of the store. `next_grant`: see
        `NextGrants.begin`."""
        self._store = store
        self._seed = seed
        self._settled = settled
        self._tidy = tidy
        self._next_grant = next_grant
        self._on_store_outage = on_store_outage
        self._allowance = OutageAllowance(allowance_nusd)
        self._observer = observer
        self._resolved: dict[str, tuple[Sequence[Scope], ResolvedLimits]] = {}
        self._open: dict[str, OpenReservation] = {}
        self._closed = closed
        self._reserving: set[str] = set()
        self._ending: list[Reservation] = []
        """exchanges that ended in this event-loop iteration"""
        self._ended: list[Reservation] = []
        """ended exchanges that the store has not received yet"""
        self._wakeup = asyncio.Event()
        self._growths: set[asyncio.Task[None]] = set()
        self._check_at = 0.0
        self._unannounced = False
        """True if requests were admitted without the store"""
        self._hangs_until = 0.0
        """until this time of the event loop, requests skip the store"""
        self._outage = Outage(observer)
        self._incomplete = Outage(observer)
        self._ledger_bugs = Outage(observer)
        self._counted = asyncio.Event()
        """set when the store has the reservations of this node's earlier runs, or when announcing them has failed"""
        self._announced = self._tidied = 0
        """number of announcements, and their number at the last tidying: an announcement may contain settled
        exchanges"""

    def use_outage_policy(self, on_store_outage: OnStoreOutage, allowance_nusd: int) -> None:
        """Decide new requests by this policy and allowance; what an outage has used of the earlier one stays used."""
        self._on_store_outage = on_store_outage
        self._allowance.nusd_max = allowance_nusd

    @property
    def reserved_nusd(self) -> int:
        """The sum of the reservations of running exchanges."""
        return sum(one.reserved.nusd for one in self._open.values())

    # -- before an exchange

    async def admit(
        self,
        key: ApiKey,
        scopes: Sequence[Scope],
        exchange_id: str,
        *,
        nusd: int,
        tokens: int,
        at_quotas: Callable[[], Measured] = _ONE_REQUEST,
    ) -> OpenReservation | Denied:
        """Reserve the amounts at every level, or at none. `scopes`: the levels with limits. `at_quotas`: called if a
        level has quotas."""
        now = self._store.time()
        resolved = self._resolve(key, scopes, now) if scopes else _UNLIMITED
        # A key that was made by a clock that is ahead has not begun: what is spent must count nevertheless.
        amounts = amounts_at(resolved.quotas, at_quotas()) if resolved.quotas else NO_AMOUNTS
        reserved = Reservation(exchange_id, resolved.counters, nusd, tokens, max(now, resolved.since), amounts)
        if not resolved.counters:
            return OpenReservation(self, reserved, (), spends=False)
        verdict = await self._reserve(reserved)
        allowed_nusd = None
        if verdict is None:
            allowed_nusd = reserved.nusd if resolved.spends else 0
            verdict = self._without_store(key, reserved, allowed_nusd, spends=resolved.spends)
        if isinstance(verdict, Denied):
            self._observer.denied(verdict.why)
            scope_id = scope_of(verdict.counter_id)
            if self._next_grant is None or verdict.counter_id != credit_counter_id(scope_id):
                return verdict
            return structs.replace(verdict, next_grant_at=await self._next_grant(scope_id))
        reservation = self._open[exchange_id] = OpenReservation(self, reserved, verdict.levels, spends=resolved.spends)
        reservation.allowed_nusd = allowed_nusd
        return reservation

    def _resolve(self, key: ApiKey, scopes: Sequence[Scope], now: float) -> ResolvedLimits:
        cached = self._resolved.get(key.key_id)
        if cached is not None and cached[0] is scopes and cached[1].since <= now < cached[1].until:
            return cached[1]
        if len(self._resolved) >= CACHED_KEYS_MAX:
            self._resolved.clear()
        resolved = resolve_limits(scopes, now)
        self._resolved[key.key_id] = scopes, resolved
        return resolved

    async def _reserve(self, reserved: Reservation) -> Granted | Denied | None:
        """The store's verdict; None: the store or the ledger is unavailable."""
        time = asyncio.get_running_loop().time
        began = time()
        if began < self._hangs_until:
            return None
        self._reserving.add(reserved.exchange_id)
        try:
            await self._until_counted()
            verdict = await self._store.reserve(reserved)
            if isinstance(verdict, Unseeded):
                verdict = await self._seeded(reserved, verdict)
        except BudgetsIncomplete as error:  # the store answers, and all other calls continue
            self._incomplete.began(error)
        except BudgetsUnavailable as error:
            if time() - began >= HANGS_S:
                self._hangs_until = time() + HANGS_S
            self._failed(error)
        except OSError:  # the ledger is unavailable (or a TimeoutError), which the follower reports
            pass
        except asyncio.CancelledError:  # the reservation may exist nevertheless
            self._queue_ended([_uncharged(reserved)])
            raise
        else:
            self._recovered()
            self._incomplete.over()
            self._allowance.store_answered(time())
            return verdict
        finally:
            self._reserving.discard(reserved.exchange_id)
        return None

    async def _until_counted(self) -> None:
        if not self._counted.is_set():
            try:
                async with asyncio.timeout(COUNTED_S):
                    await self._counted.wait()
            except TimeoutError:
                raise BudgetsIncomplete("budgets: still reading the records that the last run left") from None

    async def _seeded(self, reserved: Reservation, unseeded: Unseeded) -> Granted | Denied:
        for _ in range(SEED_TRIES):
            async with asyncio.timeout(ANSWER_S):  # the store itself has a timeout
                await self._seed(unseeded.counters)
            verdict = await self._store.reserve(reserved)
            if not isinstance(verdict, Unseeded):
                return verdict
            unseeded = verdict
        raise OSError("budgets: the spend changed during every read of the ledger")

    def _without_store(self, key: ApiKey, reserved: Reservation, nusd: int, *, spends: bool) -> Granted | Denied:
        """Apply the key's policy for outages. If it fails open, take `nusd` from the allowance. `spends`: money is
        limited."""
        policy = key.on_store_outage or (self._on_store_outage if spends else OnStoreOutage.FAIL_OPEN)
        if policy is OnStoreOutage.FAIL_OPEN and self._allowance.take(nusd, asyncio.get_running_loop().time()):
            self._unannounced = True
            return Granted(())
        # If only the reply was lost, the reservation exists: release it.
        self._queue_ended([_uncharged(reserved)])
        return Denied(DenialReason.STORE_UNAVAILABLE, reserved.counters[0].counter_id, None, ())

    # -- during an exchange, and at its end

    def grow(self, reservation: OpenReservation) -> None:
        """Raise the reservation of a running exchange in the store."""
        self._grow_soon([reservation])

    def _grow_soon(self, reservations: Sequence[OpenReservation]) -> None:
        task = asyncio.get_running_loop().create_task(self._grow(reservations))
        self._growths.add(task)
        task.add_done_callback(self._growths.discard)

    async def _grow(self, reservations: Sequence[OpenReservation]) -> None:
        for reservation in reservations:
            reserved = reservation.reserved
            fits = True  # during an outage, running exchanges continue
            try:
                fits = await self._store.grow(reserved.exchange_id, reserved.nusd, reserved.amounts)
            except OSError as error:
                self._failed(error)
            reservation.grown(fits=fits)

    def close(
        self, reservation: OpenReservation, nusd: int, tokens: int, amounts: Mapping[str, int] = NO_AMOUNTS
    ) -> None:
        """Record the end of an exchange, its charge, and its amounts at the counters of quotas."""
        reserved = reservation.reserved
        if self._open.pop(reserved.exchange_id, None) is None:
            return
        charged = nusd if reservation.spends else 0
        ended = Reservation(reserved.exchange_id, reserved.counters, charged, tokens, reserved.at, amounts)
        if charged or not ended.is_free:
            self._closed[reserved.exchange_id] = ended
        if reservation.allowed_nusd is not None:
            self._allowance.settle(reservation.allowed_nusd, ended.nusd)
        self._ending.append(ended)
        if len(self._ending) == 1:  # exchanges that end in the same event-loop iteration share one call
            asyncio.get_running_loop().call_soon(self._close_ending)

    def _close_ending(self) -> None:
        ending, self._ending = self._ending, []
        if ending:
            self._store.close_soon(ending, self._queue_ended)

    def reserve_resumed(self, reserved: Reservation, *, spends: bool) -> OpenReservation:
        """Restore the reservation of an exchange that an earlier process of this node admitted and that still runs. The
        next announcement sends it to the store."""
        reservation = OpenReservation(self, reserved, (), spends=spends)
        if reserved.counters:
            self._open[reserved.exchange_id] = reservation
            self._unannounced = True
        return reservation

    def remember(self, ended: Iterable[Reservation]) -> None:
        """Add exchanges that ended before a restart of this node, unless the ledger is known to have them."""
        self._closed.update((reserved.exchange_id, reserved) for reserved in ended)

    def reserve_again(self, ended: Iterable[Reservation]) -> None:
        """Reserve again for exchanges whose entries the ledger has lost: they count against budgets until they are
        settled again."""
        self.remember(ended)
        self._unannounced = True

    def _queue_ended(self, ended: Iterable[Reservation]) -> None:
        self._ended += ended
        self._wakeup.set()

    # -- background calls to the store

    async def run(self) -> None:
        """Report ended exchanges to the store, announce reservations again after a loss, and forget settled exchanges,
        until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._call_store(), name="admission, store")
            tasks.create_task(self._forget_periodically(), name="admission, ledger")

    async def _call_store(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):
                    await self._wakeup.wait()
            await self._attempt(self._report_ended)
            await self._attempt(self._check_store)
            if self._outage.lasts:
                await asyncio.sleep(CHECK_S)

    async def _forget_periodically(self) -> None:
        """Forget settled exchanges. Runs beside `_call_store`, because a database that hangs may block it without
        limit."""
        while True:
            await self._ledger_bugs.attempt(self._forget_settled, None)
            await asyncio.sleep(CHECK_S)

    async def announce(self) -> None:
        """Replace this node's reservations in the store by those in memory. Raises BudgetsUnavailable."""
        try:
            await self._announce()
        finally:
            self._counted.set()

    async def resume(self) -> None:
        """Call it before the first request. If the store still has all reservations of this node's last process,
        requests are admitted before `remember` and `announce`. Otherwise requests with limits wait for these calls."""
        with suppress(OSError):  # `announce` reports it
            if await self._store.resumes():
                await self._store.heartbeat()  # which returns the time that all nodes share
                self._counted.set()

    async def _announce(self) -> None:
        self._unannounced = False
        try:
            await self._store.announce(self._own_reservations)
        except BaseException:
            self._unannounced = True
            raise
        self._announced += 1
        # While this node was away, others may have been granted its reserved amounts: cut exchanges may have to end.
        if cut := [one for one in self._open.values() if one.on_short is not None]:
            self._grow_soon(cut)

    async def aclose(self) -> None:
        """Report the remaining ended exchanges, and close the store."""
        self._close_ending()
        for task in list(self._growths):
            task.cancel()
        await self._attempt(self._report_ended)
        await self._store.aclose()

    async def _check_store(self) -> None:
        """Announce again after a loss; at most once in CHECK_S."""
        now = asyncio.get_running_loop().time()
        if now < self._check_at:
            return
        self._check_at = now + CHECK_S
        if self._unannounced or not await self._store.heartbeat():
            await self.announce()

    async def _forget_settled(self) -> None:
        """Forget settled exchanges, those first that were looked up longest ago, page by page, until a page has an
        unsettled one."""
        all_settled = True
        with suppress(OSError):  # the ledger is unavailable, which the follower reports
            if self._tidied != (announced := self._announced):
                await self._tidy()
                self._tidied = announced
            while all_settled and (oldest := self._overdue()):
                settled = await self._settled(oldest)
                self._closed.forget(settled)
                all_settled = len(settled) == len(oldest)
                for exchange_id in oldest:  # others have their turn: a batch may wait for a day
                    if (waits := self._closed.pop(exchange_id, None)) is not None:
                        self._closed[exchange_id] = waits

    def _overdue(self) -> list[str]:
        now = self._store.time()
        oldest = islice(self._closed.values(), FORGET_MAX)
        return [one.exchange_id for one in oldest if abs(now - one.at) >= FORGET_S]  # also if the clock was set back

    async def _report_ended(self) -> None:
        self._wakeup.clear()
        while self._ended:
            batch = self._ended[:ENDED_MAX]
            await self._store.close(batch)
            del self._ended[: len(batch)]

    async def _attempt(self, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except Exception as error:  # noqa: BLE001  an outage, or a bug: reported, and the loop continues
            self._failed(error)
        else:
            self._recovered()

    def _own_reservations(self) -> OwnReservations:
        """A snapshot of this node's reservations, without exchanges that ended without a charge."""
        running = [one.reserved for one in self._open.values()]
        return OwnReservations(running, list(self._closed.values()), frozenset(self._reserving))

    def _failed(self, error: Exception) -> None:
        self._outage.began(error)

    def _recovered(self) -> None:
        if not self._ended:
            self._outage.over()


def _uncharged(reserved: Reservation) -> Reservation:
    """The reservation of an exchange that ended without a charge."""
    return structs.replace(reserved, nusd=0, tokens=0, amounts=dict.fromkeys(reserved.amounts, 0))


def _with_more(amount: int) -> int:
    """A quarter more, so that a long stream does not call the store for every event."""
    return amount + amount // 4
