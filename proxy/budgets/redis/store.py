"""Holds and sums on Redis, for any number of machines. See BudgetStore, and `budget_scripts.py`.

Law: one call, one script, one round trip; nothing is sent twice by itself. Redis may lose everything, or its last
writes, at any time: whoever had told it something finds that out at its next call, by the generation or by the count
of its own operations. Then nothing that others' holds matter for is granted until all had the time to announce.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from redis.exceptions import NoScriptError

from proxy.billing.limits import LimitCounter
from proxy.billing.reservation import (
    CounterState,
    DenialReason,
    Denied,
    Granted,
    Hold,
    LimitLevel,
    SpendDelta,
    SpendTotal,
    Unseeded,
    Verdict,
)
from proxy.budgets.redis import scripts
from proxy.budgets.redis.script import Script
from proxy.budgets.seed_generations import SeedGenerations
from proxy.budgets.store import BudgetsUnavailable, OwnHolds
from proxy.budgets.verdicts import bounds_rate
from proxy.storage.redis_client import QueueUnavailable, RedisClient, door

# All have announced by then, unless everything is lost again and again.
WARM_S_MAX = 3.0
# Holds of one script: it holds up the server for a few milliseconds.
AT_ONCE = 500
# Calls on their way: each has a connection, and the client has not many more. More wait here, for microseconds.
CALLS_AT_ONCE = 32
_FIXED_KEYS = 7
_US = 1_000_000
# How often a call is sent again that was refused because this node had announced meanwhile.
_STALE_TRIES = 5
_ANNOUNCE_TRIES = 3

_encode = msgspec.json.Encoder().encode


class RedisBudgets:
    """One node's way to them. See BudgetStore."""

    def __init__(
        self,
        redis: RedisClient,
        *,
        node: str,
        prefix: str = "tokenweir",
        unix_time: Callable[[], float] | None = None,
    ) -> None:
        """`prefix`: of the names of all keys. `unix_time`: None is the server's own clock, the one for all nodes.
        The client is the caller's: `aclose` leaves it open."""
        self._redis: Any = redis  # the library types its answers for all protocols at once
        self._node = node
        self._prefix = f"{{{prefix}:budgets}}:"  # one slot of a cluster
        self._unix_time = unix_time
        self._telling = asyncio.Lock()
        """what this node says of its holds, in the order in which it happened"""
        self._calls = asyncio.Semaphore(CALLS_AT_ONCE)
        self._word = ""
        """of this node's last announcement, as far as the server is known to have it"""
        self._next_word = ""
        """of the one that is under way"""
        self._generation = b""
        self._readings = SeedGenerations()
        self._operations = 0
        """how many of this node's the server was seen to have counted"""
        self._doubts = 1
        """how often something may have been lost"""
        self._doubts_announced = 0
        """how many of these doubts the last announcement ended"""
        self._fixed = [
            self._key(name) for name in ("life", f"node:{node}", "sums", "gates", "holds", "index", "closed")
        ]

    # -- this node's exchanges

    async def reserve(self, hold: Hold) -> Verdict:
        """See BudgetStore."""
        windows = _RateWindows(hold.counters)
        question = hold.exchange_id, hold.nusd, hold.tokens, [_bounds(gate, windows) for gate in hold.counters]
        deadline = asyncio.get_running_loop().time() + WARM_S_MAX
        while True:
            status, *found = await self._call(scripts.RESERVE, question, windows.gate_ids)
            if status != b"warming":
                verdict = _verdict(hold, status, found)
                if isinstance(verdict, Unseeded):
                    self._readings.begin(verdict.counters, self._generation.decode())
                return verdict
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                raise BudgetsUnavailable("what other nodes hold is not known yet")
            await asyncio.sleep(min(found[0] / _US + 0.001, left_s))

    async def grow(self, exchange_id: str, nusd: int) -> bool:
        """See BudgetStore."""
        async with self._telling:
            _, fits = await self._call(scripts.GROW, (exchange_id, nusd))
        return bool(fits)

    async def close(self, ended: Sequence[Hold]) -> None:
        """See BudgetStore."""
        async with self._telling:
            for some in _slices(ended):
                windows = _RateWindows(gate for one in some for gate in one.counters)
                question = [(one.exchange_id, one.nusd, one.tokens) for one in some], windows.places
                await self._call(scripts.CLOSE, question, windows.gate_ids)

    def close_soon(self, ended: Sequence[Hold], otherwise: Callable[[Sequence[Hold]], None]) -> None:
        """See BudgetStore. Over a network it is not possible."""
        otherwise(ended)

    async def heartbeat(self) -> bool:
        """See BudgetStore."""
        await self._call(scripts.WHOLE)
        return self._doubts == self._doubts_announced

    async def announce(self, own: Callable[[], OwnHolds]) -> None:
        """See BudgetStore."""
        async with self._telling:
            for _ in range(_ANNOUNCE_TRIES):
                if await self._announce(own):
                    return
        raise BudgetsUnavailable("all is lost again and again")

    # -- other nodes, and the ledger

    async def abandon(self, node: str, spared: Collection[str]) -> int:
        """See BudgetStore."""
        _, members = await self._call(scripts.STRAND, (node,), keys=[self._key(f"node:{node}")])
        stranded = set(_exchange_ids(members))
        for some in _slices(list(stranded.intersection(spared))):
            await self._call(scripts.END, (some, node))
        return await self._release(list(stranded.difference(spared)), node)

    async def seed(self, sums: Sequence[SpendTotal]) -> None:
        """See BudgetStore."""
        for some in _slices(sums):
            lives = [self._readings.end(one.gate_id) for one in some]
            question = [
                (one.gate_id, repr(one.since), one.nusd, one.as_of_us, life)
                for one, life in zip(some, lives, strict=True)
            ]
            await self._call(scripts.SEED, question)

    async def cursor(self) -> int | None:
        """See BudgetStore."""
        _, cursor = await self._call(scripts.CURSOR)
        return None if cursor is None else int(cursor)

    async def absorb(self, after_us: int, changes: Sequence[SpendDelta], until_us: int) -> bool:
        """See BudgetStore."""
        told = [(one.exchange_id, one.settled_at_us, one.started_at, one.nusd, one.gate_ids) for one in changes]
        _, absorbed = await self._call(scripts.ABSORB, (after_us, until_us, told))
        return bool(absorbed)

    async def forget_sums(self) -> None:
        """See BudgetStore."""
        await self._call(scripts.FORGET_SUMS)

    async def overdue(self, older_than_s: float) -> list[str]:
        """See BudgetStore."""
        _, found = await self._call(scripts.OVERDUE, (int(older_than_s * _US),))
        return [one.decode() for one in found]

    async def release(self, exchange_ids: Collection[str]) -> None:
        """See BudgetStore."""
        await self._release(list(exchange_ids), None)

    async def counter_states(self, gate_ids: Collection[str] | None = None) -> list[CounterState]:
        """See BudgetStore."""
        found: list[CounterState] = []
        for some in _slices(sorted(await self._known() if gate_ids is None else set(gate_ids))):
            _, rows = await self._call(scripts.STANDINGS, some)
            found += [_standing(gate_id, row) for gate_id, row in zip(some, rows, strict=True) if any(row)]
        return found

    async def aclose(self) -> None:
        """See BudgetStore."""

    # -- how

    async def _announce(self, own: Callable[[], OwnHolds]) -> bool:
        """False if everything was lost meanwhile."""
        _, members = await self._call(scripts.LOOK)
        # Whatever was sent before, and has not arrived, will be refused; what goes wrong from now on is another matter.
        doubts = self._doubts
        generation, looked = self._generation.decode(), set(_exchange_ids(members))
        knows = own()
        for told, ended in ((knows.open, False), (knows.closed, True)):
            for some in _slices(told):
                if not await self._tell(generation, [(one, ended, one.exchange_id in looked) for one in some], ()):
                    return False
        looked.difference_update(one.exchange_id for told in (knows.open, knows.closed) for one in told)
        strangers = [one for one in looked if one not in knows.asking]
        for some in _slices(strangers):
            if not await self._tell(generation, (), some):
                return False
        self._doubts_announced = doubts
        return True

    async def _tell(self, generation: str, told: Iterable[tuple[Hold, bool, bool]], strangers: Collection[str]) -> bool:
        windows = _RateWindows(gate for one, _, _ in told for gate in one.counters)
        rows = [
            (
                one.exchange_id,
                one.nusd,
                one.tokens,
                int(one.at),
                ended,
                there,
                [(gate.gate_id, repr(gate.since), _or_false(gate.nusd_max), windows.of(gate)) for gate in one.counters],
            )
            for one, ended, there in told
        ]
        question = generation, rows, windows.places, strangers
        status, *_ = await self._call(scripts.TELL, question, windows.gate_ids)
        return bool(status == b"done")

    async def _release(self, exchange_ids: Sequence[str], node: str | None) -> int:
        released = 0
        for some in _slices(exchange_ids):
            _, count = await self._call(scripts.RELEASE, (some, False if node is None else node))
            released += count
        return released

    async def _known(self) -> set[str]:
        """All gates that there are."""
        found: set[str] = set()
        for key in (self._key("sums"), self._key("gates")):
            async with _budgets_door(self._redis, "looking for gates"):
                async for field, _ in self._redis.hscan_iter(key, count=1_000):
                    found.add(field[1:].decode())
        return found

    async def _call(
        self, script: Script, question: Any = (), windows: Sequence[str] = (), *, keys: Sequence[str] = ()
    ) -> list[Any]:
        """What the script answers, from its status on. Raises BudgetsUnavailable; then it may have happened."""
        all_keys = [*self._fixed, *keys, *[self._key(f"window:{gate_id}") for gate_id in windows]]
        encoded = _encode(question)
        for _ in range(_STALE_TRIES):
            fresh = secrets.token_hex(8)
            if script is scripts.LOOK:
                self._next_word = fresh
            async with self._calls:
                answer = await self._send(script, all_keys, fresh, encoded)
            if answer[3] != b"stale":
                return answer[3:]
        raise BudgetsUnavailable("another process announces as this node")

    async def _send(self, script: Script, keys: Sequence[str], fresh: str, question: bytes) -> list[Any]:
        known = self._operations
        now = "" if self._unix_time is None else int(self._unix_time() * _US)
        words = len(keys), *keys, self._node, self._word, fresh, now, known, question
        try:
            async with _budgets_door(self._redis, "asking for budgets"):
                try:
                    answer: list[Any] = await self._redis.execute_command("EVALSHA", script.sha, *words)
                except NoScriptError:  # it did not happen
                    answer = await self._redis.execute_command("EVAL", script.text, *words)
        except BaseException:
            self._doubts += 1
            raise
        self._learn(known, *answer[:3])
        return answer

    def _learn(self, known: int, generation: bytes, operations: int, word: bytes) -> None:
        """What came with an answer to a question that was sent when so many operations were known."""
        undone = operations <= known
        self._operations = operations if undone else max(operations, self._operations)
        text = word.decode() or self._word
        if undone or generation != self._generation or text not in {self._word, self._next_word}:
            self._doubts += 1
        self._generation, self._word = generation, text

    def _key(self, name: str) -> str:
        return self._prefix + name


class _RateWindows:
    """Which gates' windows a script gets, and where among its keys."""

    def __init__(self, gates: Iterable[LimitCounter]) -> None:
        self.gate_ids = list(dict.fromkeys(gate.gate_id for gate in gates if bounds_rate(gate)))
        self.places = {gate_id: place for place, gate_id in enumerate(self.gate_ids, _FIXED_KEYS + 1)}

    def of(self, gate: LimitCounter) -> int | bool:
        """False: it has none."""
        return self.places[gate.gate_id] if bounds_rate(gate) else False


@asynccontextmanager
async def _budgets_door(redis: Any, doing: str) -> AsyncIterator[None]:
    """Within it, whatever goes wrong with Redis is BudgetsUnavailable."""
    try:
        async with door(redis, doing):
            yield
    except QueueUnavailable as error:
        raise BudgetsUnavailable(str(error)) from None


def _bounds(gate: LimitCounter, windows: _RateWindows) -> tuple[Any, ...]:
    """As the script wants it."""
    bounds = gate.nusd_max, gate.rpm, gate.tpm, gate.parallel
    return gate.gate_id, repr(gate.since), *map(_or_false, bounds), windows.of(gate)


def _or_false(bound: int | None) -> int | bool:
    return False if bound is None else bound


def _verdict(hold: Hold, status: bytes, found: Sequence[Any]) -> Verdict:
    if status == b"unseeded":
        return Unseeded(tuple(hold.counters[place - 1] for place in found[0]))
    levels = tuple(_level(gate, row) for gate, row in zip(filter(bounds_rate, hold.counters), found[-1], strict=True))
    if status == b"granted":
        return Granted(levels)
    why, gate_id, wait_us, _ = found
    return Denied(DenialReason(why.decode()), gate_id.decode(), None if wait_us is None else wait_us / _US, levels)


def _level(gate: LimitCounter, row: Sequence[Any]) -> LimitLevel:
    requests, requests_reset_us, tokens, tokens_reset_us = row
    return LimitLevel(gate.gate_id, requests, requests_reset_us / _US, tokens, tokens_reset_us / _US)


def _standing(gate_id: str, row: Sequence[bytes | None]) -> CounterState:
    since, spent, held, running, closed = row
    return CounterState(
        gate_id,
        float(since or 0),
        None if spent is None else int(spent),
        int(held or 0),
        int(running or 0),
        int(closed or 0),
    )


def _exchange_ids(members: Iterable[bytes]) -> list[str]:
    """Of the index."""
    return [member.rpartition(b"\0")[2].decode() for member in members]


def _slices(listed: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (listed[at : at + AT_ONCE] for at in range(0, len(listed), AT_ONCE))
