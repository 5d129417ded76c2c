"""The budget store of many machines, on Redis. For its contract, see BudgetStore; for its scripts, `scripts.py`.

Invariants: A call is one script and one round trip; a lost reply is not retried. Redis may lose all data, or its last
writes, at any time. The script on the server detects a loss by a missing generation, by the id of the replication
history, or by the count of a node's operations. A node detects a loss at its next call, by the new generation. Then no
reservation that depends on other nodes is granted until all nodes in any node's list have announced again, or `away_s`
has passed; and no reservation of a node that has not announced again.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from redis.exceptions import NoScriptError

from proxy.billing.limits import LimitCounter
from proxy.billing.reservation import (
    NO_AMOUNTS,
    CounterState,
    DenialReason,
    Denied,
    Granted,
    LimitLevel,
    Reservation,
    SpendDelta,
    SpendTotal,
    Unseeded,
    Verdict,
)
from proxy.budgets.redis import scripts
from proxy.budgets.redis.known_nodes import KnownNodes
from proxy.budgets.redis.script import Script
from proxy.budgets.seed_generations import SeedGenerations
from proxy.budgets.store import BudgetsIncomplete, BudgetsUnavailable, OwnReservations
from proxy.budgets.verdicts import bounds_rate
from proxy.ledger.settling.spend import batches
from proxy.storage.redis_client import RedisClient, map_errors
from proxy.storage.redis_keys import PREFIX, RedisKeys

# All nodes that are awake have re-announced by then, unless data is lost repeatedly. A client waits no longer.
WARM_S_MAX = 3.0
# Time without calls to the server is not counted as time for announcements.
WARM_CHECK_S = 0.5
# Reservations in one script: it blocks the server for a few milliseconds.
AT_ONCE = 500
# Concurrent calls: each uses a connection, and the client has few more. Others wait here, for microseconds.
CALLS_AT_ONCE = 32
_FIXED_KEYS = 8
_US = 1_000_000
# A reply that took longer says too little of the server's clock.
_PROMPT_S = 0.5
# Retries of a call that was rejected because this node had announced meanwhile.
_STALE_TRIES = 5
_ANNOUNCE_TRIES = 3

_encode = msgspec.json.Encoder().encode


class RedisBudgets:
    """One node's handle of the store on Redis."""

    def __init__(
        self,
        redis: RedisClient,
        *,
        node: str,
        prefix: str = PREFIX,
        away_s: float = 0.0,
        known_nodes: KnownNodes | None = None,
        unix_time: Callable[[], float] | None = None,
        own_time: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`prefix`: the beginning of all key names. `away_s`: how long the store waits, after a loss of data, for a
        node that does not announce (it is dead, or sleeps). `unix_time`: None for the server's clock, which all nodes
        share. `own_time`: the clock of this machine, used until the server's is known. The caller owns `redis`:
        `aclose` does not close it."""
        self._monotonic = monotonic
        self._server_ahead_s = own_time() - monotonic()
        """the server's clock minus `monotonic`, which does not jump when the machine's clock is set"""
        self._redis: Any = redis  # the library's return types cover all protocols
        self._node = node
        self._key = RedisKeys(prefix).budgets
        self._away_us = int(away_s * _US)
        self._known_nodes = known_nodes or KnownNodes(None)
        self._unix_time = unix_time
        self._candidate = secrets.token_bytes(8)
        """the value of this handle for `lead`: workers of two machines may have equal names"""
        self._order = asyncio.Lock()
        """keeps this node's changes of its reservations in chronological order"""
        self._calls = asyncio.Semaphore(CALLS_AT_ONCE)
        self._fencing_token = ""
        """the token of this node's last announcement that the server has confirmed"""
        self._next_fencing_token = ""
        """the token of the announcement in progress"""
        self._generation = b""
        self._seed_generations = SeedGenerations()
        self._operations = 0
        """the last count of this node's operations that the server returned"""
        self._suspected_losses = 1
        """number of times that data of this node may have been lost"""
        self._suspected_losses_announced = 0
        """the number of suspected losses before the last announcement, which repaired them"""
        self._fixed = [
            self._key(name) for name in ("life", f"node:{node}", "sums", "gates", "holds", "index", "closed", "nodes")
        ]

    def time(self) -> float:
        return self._monotonic() + self._server_ahead_s

    # -- this node's exchanges

    async def reserve(self, reservation: Reservation) -> Verdict:
        windows = _RateWindows(reservation.counters)
        question = (
            reservation.exchange_id,
            reservation.nusd,
            reservation.tokens,
            [_bounds(one, windows, reservation.amounts) for one in reservation.counters],
        )
        deadline = asyncio.get_running_loop().time() + WARM_S_MAX
        while True:
            status, *values = await self._call(scripts.RESERVE, question, windows.counter_ids)
            if status != b"warming":
                verdict = _verdict(reservation, status, values)
                if isinstance(verdict, Unseeded):
                    self._seed_generations.begin(verdict.counters, self._generation.decode())
                return verdict
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                raise BudgetsIncomplete("budgets: still waiting for nodes to re-announce reservations")
            await asyncio.sleep(min(values[0] / _US + 0.001, WARM_CHECK_S, left_s))

    async def grow(self, exchange_id: str, nusd: int, amounts: Mapping[str, int] = NO_AMOUNTS) -> bool:
        async with self._order:
            _, fits = await self._call(scripts.GROW, (exchange_id, nusd, amounts))
        return bool(fits)

    async def close(self, ended: Sequence[Reservation]) -> None:
        async with self._order:
            for some in batches(ended, AT_ONCE):
                windows = _RateWindows(counter for one in some for counter in one.counters)
                question = [(one.exchange_id, one.nusd, one.tokens, one.amounts) for one in some], windows.places
                await self._call(scripts.CLOSE, question, windows.counter_ids)

    def close_soon(self, ended: Sequence[Reservation], otherwise: Callable[[Sequence[Reservation]], None]) -> None:
        """Call `otherwise` at once: a call over the network cannot precede a later `reserve` within milliseconds."""
        otherwise(ended)

    async def heartbeat(self) -> bool:
        began = self._monotonic()
        _, now_us, nodes = await self._call(scripts.HEARTBEAT)
        ended = self._monotonic()
        if ended - began <= _PROMPT_S:
            self._server_ahead_s = int(now_us) / _US - (began + ended) / 2
        if self._nothing_suspected:
            self._know(nodes)
        return self._nothing_suspected

    async def resumes(self) -> bool:
        _, resumes = await self._call(scripts.RESUMES)
        return bool(resumes)

    async def announce(self, own: Callable[[], OwnReservations]) -> None:
        async with self._order:
            for _ in range(_ANNOUNCE_TRIES):
                if await self._announce(own):
                    return
        raise BudgetsUnavailable("budgets: Redis lost its data during every announcement")

    # -- other nodes, and the ledger

    async def abandon(self, node: str, spared: Collection[str]) -> int:
        _, members = await self._call(scripts.ORPHANS, (node,), keys=[self._key(f"node:{node}")])
        orphans = set(_exchange_ids(members))
        for some in batches(orphans.intersection(spared), AT_ONCE):
            await self._call(scripts.END, (some, node))
        return await self._release(list(orphans.difference(spared)), node)

    async def seed(self, sums: Sequence[SpendTotal]) -> None:
        for some in batches(sums, AT_ONCE):
            generations = [self._seed_generations.end(one.counter_id) for one in some]
            question = [
                (one.counter_id, repr(one.since), one.amount, one.as_of_us, generation)
                for one, generation in zip(some, generations, strict=True)
            ]
            await self._call(scripts.SEED, question)

    async def cursor(self) -> int | None:
        _, cursor = await self._call(scripts.CURSOR)
        return None if cursor is None else int(cursor)

    async def absorb(self, after_us: int, changes: Sequence[SpendDelta], until_us: int) -> bool:
        rows = [
            (one.exchange_id, one.settled_at_us, one.started_at, one.nusd, one.counter_ids, one.amounts)
            for one in changes
        ]
        _, absorbed = await self._call(scripts.ABSORB, (after_us, until_us, rows))
        return bool(absorbed)

    async def lead(self, for_s: float) -> bool:
        key, lease_ms = self._key("leader"), int(for_s * 1_000)
        async with map_errors(self._redis, "choosing a follower of the ledger", BudgetsUnavailable):
            if await self._redis.set(key, self._candidate, nx=True, px=lease_ms):
                return True
            if await self._redis.get(key) != self._candidate:
                return False
            return bool(await self._redis.pexpire(key, lease_ms))

    async def forget_sums(self, restored_to_us: int | None = None) -> None:
        await self._call(scripts.FORGET_SUMS, (False if restored_to_us is None else restored_to_us,))

    async def timeline(self) -> str | None:
        async with map_errors(self._redis, "reading the ledger's timeline", BudgetsUnavailable):
            timeline = await self._redis.get(self._key("timeline"))
        return None if timeline is None else str(timeline.decode())

    async def set_timeline(self, timeline: str) -> None:
        async with map_errors(self._redis, "writing the ledger's timeline", BudgetsUnavailable):
            await self._redis.set(self._key("timeline"), timeline)

    async def overdue(self, older_than_s: float) -> list[str]:
        _, exchange_ids = await self._call(scripts.OVERDUE, (int(older_than_s * _US),))
        return [one.decode() for one in exchange_ids]

    async def release(self, exchange_ids: Collection[str]) -> None:
        await self._release(list(exchange_ids), None)

    async def counter_states(self, counter_ids: Collection[str] | None = None) -> list[CounterState]:
        states: list[CounterState] = []
        for some in batches(sorted(await self._all_ids() if counter_ids is None else set(counter_ids)), AT_ONCE):
            _, rows = await self._call(scripts.COUNTER_STATES, some)
            states += [_counter_state(counter_id, row) for counter_id, row in zip(some, rows, strict=True) if any(row)]
        return states

    async def seeded(self, after: str, limit: int) -> tuple[list[str], str]:
        async with map_errors(self._redis, "listing limit counters", BudgetsUnavailable):
            # Two fields a counter.
            cursor, fields = await self._redis.hscan(self._key("sums"), int(after or 0), count=2 * limit)
        return [one[1:].decode() for one in fields if one.startswith(b"s")], str(cursor) if cursor else ""

    async def aclose(self) -> None:
        if self._suspected_losses_announced:
            with suppress(BudgetsUnavailable):
                await self._call(scripts.LEAVE)

    # -- announcements and calls

    async def _announce(self, own: Callable[[], OwnReservations]) -> bool:
        """Announce once. False if the store lost its data meanwhile."""
        known = self._known_nodes
        question = list(known.names), self._away_us, known.generation
        _, members = await self._call(scripts.BEGIN_ANNOUNCEMENT, question)
        # From here on the server rejects late earlier calls. Later suspected losses need another announcement.
        suspected_losses = self._suspected_losses
        generation, stored = self._generation.decode(), set(_exchange_ids(members))
        current = own()
        for reservations, ended in ((current.open, False), (current.closed, True)):
            for some in batches(reservations, AT_ONCE):
                rows = [(one, ended, one.exchange_id in stored) for one in some]
                if not await self._write_reservations(generation, rows, ()):
                    return False
        stored.difference_update(
            one.exchange_id for reservations in (current.open, current.closed) for one in reservations
        )
        orphans = [one for one in stored if one not in current.reserving]
        for orphaned in batches(orphans, AT_ONCE):
            if not await self._write_reservations(generation, (), orphaned):
                return False
        status, *values = await self._call(scripts.END_ANNOUNCEMENT, (generation,))
        if status != b"done":
            return False
        self._suspected_losses_announced = suspected_losses
        if self._nothing_suspected:
            self._know(values[0])
        return True

    async def _write_reservations(
        self, generation: str, reservations: Iterable[tuple[Reservation, bool, bool]], orphans: Collection[str]
    ) -> bool:
        """Write one slice of an announcement. `reservations`: each with True if the exchange has ended, and True if it
        was stored before. False if the generation has changed."""
        windows = _RateWindows(counter for one, _, _ in reservations for counter in one.counters)
        rows = [
            (
                one.exchange_id,
                one.nusd,
                one.tokens,
                int(one.at),
                ended,
                stored,
                [
                    (each.counter_id, repr(each.since), _or_false(each.nusd_max), windows.of(each))
                    for each in one.counters
                ],
                one.amounts,
            )
            for one, ended, stored in reservations
        ]
        question = generation, rows, windows.places, orphans
        status, *_ = await self._call(scripts.ANNOUNCE, question, windows.counter_ids)
        return bool(status == b"done")

    async def _release(self, exchange_ids: Sequence[str], node: str | None) -> int:
        released = 0
        for some in batches(exchange_ids, AT_ONCE):
            _, count = await self._call(scripts.RELEASE, (some, False if node is None else node))
            released += count
        return released

    async def _all_ids(self) -> set[str]:
        """The ids of all stored counters."""
        ids: set[str] = set()
        for key in (self._key("sums"), self._key("gates")):
            async with map_errors(self._redis, "listing limit counters", BudgetsUnavailable):
                async for field, _ in self._redis.hscan_iter(key, count=1_000):
                    ids.add(field[1:].decode())
        return ids

    async def _call(
        self, script: Script, question: Any = (), windows: Sequence[str] = (), *, keys: Sequence[str] = ()
    ) -> list[Any]:
        """Run a script and return its reply, from the status on. Raises BudgetsUnavailable; the script may have run
        then."""
        all_keys = [*self._fixed, *keys, *[self._key(f"window:{counter_id}") for counter_id in windows]]
        encoded = _encode(question)
        for _ in range(_STALE_TRIES):
            fresh = secrets.token_hex(8)
            if script is scripts.BEGIN_ANNOUNCEMENT:
                self._next_fencing_token = fresh
            async with self._calls:
                reply = await self._send(script, all_keys, fresh, encoded)
            if reply[3] != b"stale":
                return reply[3:]
        raise BudgetsUnavailable(f"budgets: another process announces as node {self._node}: node names must be unique")

    async def _send(self, script: Script, keys: Sequence[str], fresh: str, question: bytes) -> list[Any]:
        now = "" if self._unix_time is None else int(self._unix_time() * _US)
        known = self._operations, self._generation
        arguments = len(keys), *keys, self._node, self._fencing_token, fresh, now, *known, question
        try:
            async with map_errors(self._redis, "calling the budget store", BudgetsUnavailable):
                try:
                    reply: list[Any] = await self._redis.execute_command("EVALSHA", script.sha, *arguments)
                except NoScriptError:  # the script did not run
                    reply = await self._redis.execute_command("EVAL", script.text, *arguments)
        except BaseException:
            self._suspected_losses += 1
            raise
        self._check_reply(*reply[:3])
        return reply

    @property
    def _nothing_suspected(self) -> bool:
        return self._suspected_losses == self._suspected_losses_announced

    def _know(self, nodes: Iterable[bytes]) -> None:
        """Remember the nodes to wait for after a loss. Call it only while no loss is suspected: after a loss, the list
        from before it is needed."""
        self._known_nodes.update(self._generation.decode(), set(map(bytes.decode, nodes)) - {self._node})

    def _check_reply(self, generation: bytes, operations: int, token: bytes) -> None:
        """Detect a loss of data by the reply."""
        self._operations = max(operations, self._operations) if generation == self._generation else operations
        fencing_token = token.decode() or self._fencing_token
        expected = {self._fencing_token, self._next_fencing_token}
        if generation != self._generation or fencing_token not in expected:
            self._suspected_losses += 1
        self._generation, self._fencing_token = generation, fencing_token


class _RateWindows:
    """The counters whose rate windows a script needs, and the positions of their keys in KEYS."""

    def __init__(self, counters: Iterable[LimitCounter]) -> None:
        self.counter_ids = list(dict.fromkeys(one.counter_id for one in counters if bounds_rate(one)))
        self.places = {counter_id: place for place, counter_id in enumerate(self.counter_ids, _FIXED_KEYS + 1)}

    def of(self, counter: LimitCounter) -> int | bool:
        """The position of the counter's window in KEYS; False: the counter has no window."""
        return self.places[counter.counter_id] if bounds_rate(counter) else False


def _bounds(counter: LimitCounter, windows: _RateWindows, amounts: Mapping[str, int]) -> tuple[Any, ...]:
    """A counter in the form that `RESERVE` expects."""
    bounds = map(_or_false, (counter.nusd_max, counter.rpm, counter.tpm, counter.parallel))
    amount = _or_false(amounts.get(counter.counter_id))
    return counter.counter_id, repr(counter.since), *bounds, windows.of(counter), amount


def _or_false(bound: int | None) -> int | bool:
    return False if bound is None else bound


def _verdict(reservation: Reservation, status: bytes, values: Sequence[Any]) -> Verdict:
    if status == b"unseeded":
        return Unseeded(tuple(reservation.counters[place - 1] for place in values[0]))
    rated = filter(bounds_rate, reservation.counters)
    levels = tuple(_level(counter, row) for counter, row in zip(rated, values[-1], strict=True))
    if status == b"granted":
        return Granted(levels)
    why, counter_id, wait_us, spent, reserved, _ = values
    retry_after_s = None if wait_us is None else wait_us / _US
    return Denied(DenialReason(why.decode()), counter_id.decode(), retry_after_s, levels, spent, reserved)


def _level(counter: LimitCounter, row: Sequence[Any]) -> LimitLevel:
    requests, requests_reset_us, tokens, tokens_reset_us = row
    return LimitLevel(counter.counter_id, requests, requests_reset_us / _US, tokens, tokens_reset_us / _US)


def _counter_state(counter_id: str, row: Sequence[bytes | None]) -> CounterState:
    since, spent, reserved, running, closed = row
    return CounterState(
        counter_id,
        float(since or 0),
        None if spent is None else int(spent),
        int(reserved or 0),
        int(running or 0),
        int(closed or 0),
    )


def _exchange_ids(members: Iterable[bytes]) -> list[str]:
    """The exchange ids of members of `index`."""
    return [member.rpartition(b"\0")[2].decode() for member in members]
