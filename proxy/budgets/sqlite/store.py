"""Holds and sums on one machine: one SQLite file for all its processes. See BudgetStore, and `budget_file.py`.

Law: each call is one transaction, run on the event loop: 20 to 30 µs, less than the way to a thread and back; what is
longer comes in slices. Requests that come in two turns of the loop share one, with the exchanges that ended since the
one before: those let go first, and each request is decided after the one before.
Nothing waits within SQLite: while another process is in its transaction the streams go on.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from proxy.billing.reservation import CounterState, Hold, SpendDelta, SpendTotal, Verdict
from proxy.budgets.sqlite.file import BudgetFile, Busy
from proxy.budgets.sqlite.tables import BudgetTables, HeldAlready
from proxy.budgets.store import BudgetsUnavailable, OwnHolds

_T = TypeVar("_T")

_Asked: TypeAlias = "tuple[Hold, asyncio.Future[Verdict | None]]"
_Ending: TypeAlias = "tuple[Sequence[Hold], Callable[[Sequence[Hold]], None]]"

# Other processes' transactions take microseconds; where one takes so long, its process or the disk stands still.
BUSY_S_MAX = 1.0
_AGAIN_S_MIN, _AGAIN_S_MAX = 0.000_2, 0.001
# Those that ended wait so long for a request to share its transaction: one that is smaller costs nearly as much.
JOIN_S = 0.005
# All have announced by then, unless the file is lost again and again.
WARM_S_MAX = 3.0
# Holds of one transaction: 5 ms of the event loop's time.
AT_ONCE = 500


class SqliteBudgets:
    """One process's way to a file. See BudgetStore."""

    def __init__(self, path: Path, *, node: str, unix_time: Callable[[], float]) -> None:
        """The file is made at the first call, readable by its owner only; its folder must be there."""
        self._file = BudgetFile(path)
        self._tables = BudgetTables(self._file, node, unix_time)
        self._telling = asyncio.Lock()
        """what this node says of its holds, in the order in which it happened"""
        self._announced = ""
        """the word of this handle's last announcement"""
        self._asked: list[_Asked] = []
        """to be decided in this turn of the event loop"""
        self._ending: list[_Ending] = []
        """to be closed with them, or within JOIN_S"""

    # -- this node's exchanges

    async def reserve(self, hold: Hold) -> Verdict:
        """See BudgetStore."""
        deadline = 0.0
        while (answer := await self._decision(hold)) is None:
            now = time.monotonic()
            deadline = deadline or now + WARM_S_MAX
            if now >= deadline:
                raise BudgetsUnavailable("what other processes hold is not known yet")
            await asyncio.sleep(min(max(self._file.warm_until - now, _AGAIN_S_MAX), deadline - now))
        return answer

    def _decision(self, hold: Hold) -> asyncio.Future[Verdict | None]:
        loop = asyncio.get_running_loop()
        if not self._asked:
            loop.call_soon(self._end_next_turn)
        decided: asyncio.Future[Verdict | None] = loop.create_future()
        self._asked.append((hold, decided))
        return decided

    # -- the turn that exchanges share

    def _end_next_turn(self) -> None:
        """Not this one: so those share it, too, whose bytes have only just come."""
        asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self, deadline: float = 0.0) -> None:
        """`deadline`: where another process was in its transaction; of `time.monotonic`."""
        asked = [one for one in self._asked if not one[1].done()]  # nobody waits for what was cancelled
        asked, self._asked = asked[:AT_ONCE], asked[AT_ONCE:]
        ending, self._ending = self._ending, []
        if self._telling.locked():  # what is being told may be older
            _hand_back(ending)
            ending = []
        if not asked and not ending:
            return
        try:
            answers = self._shared([one for ended, _ in ending for one in ended], [hold for hold, _ in asked])
        except Busy:
            now = time.monotonic()
            deadline = deadline or now + BUSY_S_MAX
            if now < deadline:
                self._asked, self._ending = asked + self._asked, ending + self._ending
                again_s = random.uniform(_AGAIN_S_MIN, _AGAIN_S_MAX)  # noqa: S311  to fall out of step
                asyncio.get_running_loop().call_later(again_s, self._end_turn, deadline)
                return
            _fail(asked, BudgetsUnavailable("the budgets' file is in use all the time"))
            _hand_back(ending)
        except Exception as error:  # noqa: BLE001  it is for those who wait
            _fail(asked, error)
            _hand_back(ending)
        else:
            for (_, decided), answer in zip(asked, answers, strict=True):
                decided.set_result(answer)
        if self._asked:
            asyncio.get_running_loop().call_soon(self._end_turn)

    def _shared(self, ended: Sequence[Hold], asked: Sequence[Hold]) -> list[Verdict | None]:
        try:
            return self._file.transaction(self._tables.turn, ended, asked)
        except HeldAlready:
            self._file.transaction(self._tables.close, ended)
            return [self._file.transaction(self._tables.reserve, hold) for hold in asked]

    async def grow(self, exchange_id: str, nusd: int) -> bool:
        """See BudgetStore."""
        async with self._telling:
            return await self._turn(self._tables.grow, exchange_id, nusd)

    async def close(self, ended: Sequence[Hold]) -> None:
        """See BudgetStore."""
        async with self._telling:
            await self._sliced(self._tables.close, ended)

    def close_soon(self, ended: Sequence[Hold], otherwise: Callable[[Sequence[Hold]], None]) -> None:
        """See BudgetStore."""
        if not self._ending:
            asyncio.get_running_loop().call_later(JOIN_S, self._end_turn)
        self._ending.append((ended, otherwise))

    async def heartbeat(self) -> bool:
        """See BudgetStore."""
        return await self._turn(self._tables.fencing_token) == self._announced

    async def announce(self, own: Callable[[], OwnHolds]) -> None:
        """See BudgetStore."""
        async with self._telling:
            looked, word = await self._turn(self._tables.look)
            knows = own()
            await self._sliced(self._tables.tell_open, knows.open, looked)
            await self._sliced(self._tables.tell_closed, knows.closed, looked)
            named = {one.exchange_id for told in (knows.open, knows.closed) for one in told}
            await self._sliced(
                self._tables.release_open, [one for one in looked.ids - named if one not in knows.asking]
            )
            self._announced = word

    # -- other nodes, and the ledger

    async def abandon(self, node: str, spared: Collection[str]) -> int:
        """See BudgetStore."""
        stranded = await self._turn(self._tables.abandon, node)
        await self._sliced(self._tables.end, list(stranded.intersection(spared)))
        return sum(await self._sliced(self._tables.release_open, list(stranded.difference(spared))))

    async def seed(self, sums: Sequence[SpendTotal]) -> None:
        """See BudgetStore."""
        await self._turn(self._tables.seed, sums)

    async def cursor(self) -> int | None:
        """See BudgetStore."""
        return await self._turn(self._tables.cursor)

    async def absorb(self, after_us: int, changes: Sequence[SpendDelta], until_us: int) -> bool:
        """See BudgetStore."""
        return await self._turn(self._tables.absorb, after_us, changes, until_us)

    async def forget_sums(self) -> None:
        """See BudgetStore."""
        await self._turn(self._tables.forget_sums)

    async def overdue(self, older_than_s: float) -> list[str]:
        """See BudgetStore."""
        return await self._turn(self._tables.overdue, older_than_s)

    async def release(self, exchange_ids: Collection[str]) -> None:
        """See BudgetStore."""
        await self._sliced(self._tables.release, list(exchange_ids))

    async def counter_states(self, gate_ids: Collection[str] | None = None) -> list[CounterState]:
        """See BudgetStore."""
        return await self._turn(self._tables.counter_states, gate_ids)

    async def aclose(self) -> None:
        """See BudgetStore."""
        self._end_turn()
        _fail(self._asked, BudgetsUnavailable("it is being shut down"))
        self._asked.clear()
        self._file.close()

    # -- transactions

    async def _turn(self, work: Callable[..., _T], *asked: Any) -> _T:
        """`work`, in a transaction, as soon as no other process is in one."""
        deadline = 0.0
        while True:
            try:
                return self._file.transaction(work, *asked)
            except Busy:
                now = time.monotonic()
                deadline = deadline or now + BUSY_S_MAX
                if now >= deadline:
                    raise BudgetsUnavailable("the budgets' file is in use all the time") from None
                await asyncio.sleep(random.uniform(_AGAIN_S_MIN, _AGAIN_S_MAX))  # noqa: S311  to fall out of step

    async def _sliced(self, work: Callable[..., _T], listed: Sequence[Any], *asked: Any) -> list[_T]:
        """`work` for all that is listed, so many at once; between them the streams have their turn."""
        answers = []
        for at in range(0, len(listed), AT_ONCE):
            if at:
                await asyncio.sleep(0)
            answers.append(await self._turn(work, listed[at : at + AT_ONCE], *asked))
        return answers


def _hand_back(ending: Sequence[_Ending]) -> None:
    for ended, otherwise in ending:
        otherwise(ended)


def _fail(asked: Sequence[_Asked], error: Exception) -> None:
    for _, decided in asked:
        if not decided.done():
            decided.set_exception(error)
