"""The budget store of one machine: a SQLite file that its processes share. For its contract, see BudgetStore; for the
file, `file.py`.

Invariants: Each call is one transaction on the event loop: 20 to 30 µs, less than a switch to a thread and back; longer
work is split. Requests of two event-loop iterations share a transaction with the exchanges that ended since the
previous one: first the ended exchanges are closed, then the requests are decided in order. Nothing waits within SQLite:
during another process's transaction, streams continue.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from proxy.billing.reservation import NO_AMOUNTS, CounterState, Reservation, SpendDelta, SpendTotal, Verdict
from proxy.budgets.sqlite.file import BudgetFile, Busy
from proxy.budgets.sqlite.tables import AlreadyReserved, BudgetTables
from proxy.budgets.store import BudgetsUnavailable, OwnReservations

_T = TypeVar("_T")

_Request: TypeAlias = "tuple[Reservation, asyncio.Future[Verdict | None]]"
_Ending: TypeAlias = "tuple[Sequence[Reservation], Callable[[Sequence[Reservation]], None]]"

# Transactions take microseconds. If the file is busy for so long, another process or the disk hangs.
BUSY_S_MAX = 1.0
_RETRY_S_MIN, _RETRY_S_MAX = 0.000_2, 0.001
# Ended exchanges wait this long for a request, to share its transaction: a separate one costs nearly as much.
JOIN_S = 0.005
# All processes have re-announced by then, unless the file is lost repeatedly.
WARM_S_MAX = 3.0
# Reservations in one transaction: 5 ms of the event loop's time.
AT_ONCE = 500


class _Leadership:
    """The election of one leading process on a machine: a lock on a separate file, because closing a descriptor of
    SQLite's file would drop SQLite's locks. The lock ends with its process, even if the process is killed."""

    def __init__(self, path: Path) -> None:
        """The first `acquire` creates the file; its folder must exist."""
        self._path = path
        self._lock: int | None = None

    def acquire(self) -> bool:
        """True if this process has the lock, now or already. Raises BudgetsUnavailable."""
        if self._lock is not None:
            return True
        try:
            lock = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise BudgetsUnavailable(f"budgets: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        self._lock = lock
        return True

    def release(self) -> None:
        """Release the lock to another process."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class SqliteBudgets:
    """One process's handle of the store in a SQLite file."""

    def __init__(self, path: Path, *, node: str, unix_time: Callable[[], float]) -> None:
        """The first call creates the file, readable by its owner only; its folder must exist."""
        self.time = unix_time
        """the machine's clock, which all its processes share"""
        self._file = BudgetFile(path)
        self._leadership = _Leadership(path.with_suffix(".leader"))
        self._tables = BudgetTables(self._file, node, unix_time)
        self._order = asyncio.Lock()
        """keeps this node's changes of its reservations in chronological order"""
        self._announced = ""
        """the fencing token of this handle's last announcement"""
        self._requests: list[_Request] = []
        """requests that the next shared transaction decides"""
        self._ending: list[_Ending] = []
        """ended exchanges that the next shared transaction closes, after JOIN_S at the latest"""

    # -- this node's exchanges

    async def reserve(self, reservation: Reservation) -> Verdict:
        deadline = 0.0
        while (answer := await self._decision(reservation)) is None:
            now = time.monotonic()
            deadline = deadline or now + WARM_S_MAX
            if now >= deadline:
                raise BudgetsUnavailable("budgets: still waiting for other processes to re-announce reservations")
            await asyncio.sleep(min(max(self._file.warm_until - now, _RETRY_S_MAX), deadline - now))
        return answer

    def _decision(self, reservation: Reservation) -> asyncio.Future[Verdict | None]:
        loop = asyncio.get_running_loop()
        if not self._requests:
            loop.call_soon(self._schedule_batch)
        decided: asyncio.Future[Verdict | None] = loop.create_future()
        self._requests.append((reservation, decided))
        return decided

    # -- the shared transaction

    def _schedule_batch(self) -> None:
        """Wait one more event-loop iteration, so that requests which arrive in it share the transaction."""
        asyncio.get_running_loop().call_soon(self._run_batch)

    def _run_batch(self, deadline: float = 0.0) -> None:
        """Run the shared transaction. `deadline`: the end of retries after Busy, by `time.monotonic`; 0: the first
        try."""
        requests = [one for one in self._requests if not one[1].done()]  # without cancelled ones
        requests, self._requests = requests[:AT_ONCE], requests[AT_ONCE:]
        ending, self._ending = self._ending, []
        if self._order.locked():  # earlier changes are still being written
            _hand_back(ending)
            ending = []
        if not requests and not ending:
            return
        try:
            verdicts = self._decide(
                [one for ended, _ in ending for one in ended], [reservation for reservation, _ in requests]
            )
        except Busy:
            now = time.monotonic()
            deadline = deadline or now + BUSY_S_MAX
            if now < deadline:
                self._requests, self._ending = requests + self._requests, ending + self._ending
                retry_s = random.uniform(_RETRY_S_MIN, _RETRY_S_MAX)  # noqa: S311  jitter
                asyncio.get_running_loop().call_later(retry_s, self._run_batch, deadline)
                return
            _fail(requests, _busy_too_long())
            _hand_back(ending)
        except Exception as error:  # noqa: BLE001  raised to the waiting callers
            _fail(requests, error)
            _hand_back(ending)
        else:
            for (_, decided), verdict in zip(requests, verdicts, strict=True):
                decided.set_result(verdict)
        if self._requests:
            asyncio.get_running_loop().call_soon(self._run_batch)

    def _decide(self, ended: Sequence[Reservation], reservations: Sequence[Reservation]) -> list[Verdict | None]:
        try:
            return self._file.transaction(self._tables.batch, ended, reservations)
        except AlreadyReserved:
            self._file.transaction(self._tables.close, ended)
            return [self._file.transaction(self._tables.reserve, reservation) for reservation in reservations]

    async def grow(self, exchange_id: str, nusd: int, amounts: Mapping[str, int] = NO_AMOUNTS) -> bool:
        async with self._order:
            return await self._transaction(self._tables.grow, exchange_id, nusd, amounts)

    async def close(self, ended: Sequence[Reservation]) -> None:
        async with self._order:
            await self._in_slices(self._tables.close, ended)

    def close_soon(self, ended: Sequence[Reservation], otherwise: Callable[[Sequence[Reservation]], None]) -> None:
        if not self._ending:
            asyncio.get_running_loop().call_later(JOIN_S, self._run_batch)
        self._ending.append((ended, otherwise))

    async def heartbeat(self) -> bool:
        return await self._transaction(self._tables.fencing_token) == self._announced

    async def resumes(self) -> bool:
        return await self._transaction(self._tables.is_announced)

    async def announce(self, own: Callable[[], OwnReservations]) -> None:
        async with self._order:
            stored, fencing_token = await self._transaction(self._tables.begin_announcement)
            current = own()
            await self._in_slices(self._tables.announce_open, current.open, stored)
            await self._in_slices(self._tables.announce_closed, current.closed, stored)
            announced = {one.exchange_id for reservations in (current.open, current.closed) for one in reservations}
            orphans = [one for one in stored.ids - announced if one not in current.reserving]
            await self._in_slices(self._tables.release_open, orphans)
            await self._transaction(self._tables.end_announcement, fencing_token)
            self._announced = fencing_token

    # -- other nodes, and the ledger

    async def abandon(self, node: str, spared: Collection[str]) -> int:
        orphans = await self._transaction(self._tables.abandon, node)
        await self._in_slices(self._tables.end, list(orphans.intersection(spared)))
        return sum(await self._in_slices(self._tables.release_open, list(orphans.difference(spared))))

    async def seed(self, sums: Sequence[SpendTotal]) -> None:
        await self._transaction(self._tables.seed, sums)

    async def cursor(self) -> int | None:
        return await self._transaction(self._tables.cursor)

    async def absorb(self, after_us: int, changes: Sequence[SpendDelta], until_us: int) -> bool:
        return await self._transaction(self._tables.absorb, after_us, changes, until_us)

    async def lead(self, for_s: float) -> bool:
        """True until this handle is closed, or its process ends; `for_s` is not used."""
        return self._leadership.acquire()

    async def forget_sums(self, restored_to_us: int | None = None) -> None:
        await self._transaction(self._tables.forget_sums, restored_to_us)

    async def timeline(self) -> str | None:
        return await self._transaction(self._tables.timeline)

    async def set_timeline(self, timeline: str) -> None:
        await self._transaction(self._tables.set_timeline, timeline)

    async def overdue(self, older_than_s: float) -> list[str]:
        return await self._transaction(self._tables.overdue, older_than_s)

    async def release(self, exchange_ids: Collection[str]) -> None:
        await self._in_slices(self._tables.release, list(exchange_ids))

    async def counter_states(self, counter_ids: Collection[str] | None = None) -> list[CounterState]:
        return await self._transaction(self._tables.counter_states, counter_ids)

    async def seeded(self, after: str, limit: int) -> tuple[list[str], str]:
        counter_ids = await self._transaction(self._tables.seeded, after, limit)
        return counter_ids, counter_ids[-1] if len(counter_ids) == limit else ""

    async def aclose(self) -> None:
        self._leadership.release()
        self._run_batch()
        _fail(self._requests, BudgetsUnavailable("budgets: shutting down"))
        self._requests.clear()
        self._file.close()

    # -- transactions

    async def _transaction(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """Run `work` in a transaction; retry while another process has one open."""
        deadline = 0.0
        while True:
            try:
                return self._file.transaction(work, *arguments)
            except Busy:
                now = time.monotonic()
                deadline = deadline or now + BUSY_S_MAX
                if now >= deadline:
                    raise _busy_too_long() from None
                await asyncio.sleep(random.uniform(_RETRY_S_MIN, _RETRY_S_MAX))  # noqa: S311  jitter

    async def _in_slices(self, work: Callable[..., _T], items: Sequence[Any], *arguments: Any) -> list[_T]:
        """Run `work` on slices of `items`, each in a transaction; in between, other tasks run."""
        results = []
        for at in range(0, len(items), AT_ONCE):
            if at:
                await asyncio.sleep(0)
            results.append(await self._transaction(work, items[at : at + AT_ONCE], *arguments))
        return results


def _busy_too_long() -> BudgetsUnavailable:
    return BudgetsUnavailable(f"budgets file: locked by other processes for {BUSY_S_MAX:g} s")


def _hand_back(ending: Sequence[_Ending]) -> None:
    for ended, otherwise in ending:
        otherwise(ended)


def _fail(requests: Sequence[_Request], error: Exception) -> None:
    for _, decided in requests:
        if not decided.done():
            decided.set_exception(error)
