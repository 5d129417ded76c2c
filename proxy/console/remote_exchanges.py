"""Running exchanges of other machines, read from the lease registry.

Invariants:
- The registry is polled at most every POLL_S, only on request, and with a timeout.
- A poll reads at most READ_MAX leases; nodes with more are only counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress

import msgspec
from msgspec import UNSET, structs

from proxy.billing.record import Opened
from proxy.console.api.live import RemoteCoverage, StopResult
from proxy.delivery.leases import LeaseParts, LeaseRegistry
from proxy.gateway.exchange.running import ExchangeSnapshot, State, snapshot
from proxy.journal.frames import decode_opened
from proxy.journal.progress import decoded
from proxy.journal.recovery import sweep
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.usage import UsageSource

# A lease is renewed about every 3 s, so a shorter interval brings nothing new.
POLL_S = 2.0
TIMEOUT_S = 1.0
# 1 kB and 0.03 ms each; the console shows the newest 500 streams.
READ_MAX = 500
# Leases decoded between two yields to the event loop: 0.3 ms.
BATCH = 10


class RemoteSnapshot(msgspec.Struct, frozen=True):
    """The result of one poll."""

    running: tuple[ExchangeSnapshot, ...] = ()
    nodes: int = 0
    coverage: RemoteCoverage = "unknown"


class RemoteExchanges:
    """Polls the lease registry and caches the result for POLL_S."""

    def __init__(
        self, leases: LeaseRegistry, estimator: Estimator, ask_to_stop: Callable[[str], Awaitable[None]]
    ) -> None:
        """`ask_to_stop`: asks the other machines to stop an exchange; raises OSError."""
        self._leases = leases
        self._ask_to_stop = ask_to_stop
        self._estimator = estimator
        self._snapshot = RemoteSnapshot()
        self._polled_at = float("-inf")
        self._beats: dict[str, tuple[str, float]] = {}
        """node → its last heartbeat, and when it was first observed (monotonic seconds)"""

    async def poll(self, local_nodes: Collection[str]) -> RemoteSnapshot:
        """Running exchanges of all nodes but `local_nodes`. Never raises; coverage is `unknown` on failure."""
        if time.monotonic() >= self._polled_at + POLL_S:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    self._snapshot = await self._read_all(local_nodes)
            except (OSError, TimeoutError):
                self._snapshot = RemoteSnapshot()
            self._polled_at = time.monotonic()
        return self._snapshot

    async def key_of(self, exchange_id: str) -> str | None:
        """The key of a running exchange; None: unknown. Raises OSError."""
        opened = await self._leases.opened(exchange_id)
        return None if opened is None else decode_opened(opened).key_id

    async def stop(self, exchange_id: str) -> StopResult:
        """Ask the machine that runs a stream to stop it. Raises OSError."""
        lease = await self._leases.opened(exchange_id)
        if lease is None:
            return StopResult.NOT_RUNNING
        with suppress(ValueError):  # a lease of another version: its own proxy decides
            opened = decode_opened(lease)
            if not opened.streamed or opened.background is not UNSET:
                return StopResult.NOT_STOPPABLE
        await self._ask_to_stop(exchange_id)
        return StopResult.REQUESTED

    async def _read_all(self, local_nodes: Collection[str]) -> RemoteSnapshot:
        beats = {node: beat for node, beat in (await self._leases.nodes()).items() if node not in local_nodes}
        self._remember(beats)
        counts = await self._leases.counts(sorted(beats))
        exchanges: list[ExchangeSnapshot] = []
        coverage: RemoteCoverage = "complete"
        for node in sorted(beats, key=lambda node: counts[node]):
            if len(exchanges) + counts[node] > READ_MAX or (counts[node] and not await self._read(node, exchanges)):
                coverage = "partial"
        return RemoteSnapshot(tuple(exchanges), len(beats), coverage)

    def _remember(self, beats: Mapping[str, str]) -> None:
        now, before = time.monotonic(), self._beats
        self._beats = {
            node: before[node] if node in before and before[node][0] == beat else (beat, now)
            for node, beat in beats.items()
        }

    async def _read(self, node: str, exchanges: list[ExchangeSnapshot]) -> bool:
        """Appends the node's exchanges. False if one of them cannot be decoded."""
        heartbeat_age_s = time.monotonic() - self._beats[node][1]
        complete = True
        for number, parts in enumerate((await self._leases.of(node)).values()):
            if number % BATCH == BATCH - 1:
                await asyncio.sleep(0)
            try:
                exchanges.append(_running(node, heartbeat_age_s, parts, self._estimator))
            except ValueError:  # a lease of another version; the node's own console shows it
                complete = False
        return complete


def _state(opened: Opened, size: int) -> State:
    if opened.background is not UNSET:
        return "background"
    return "streaming" if size else "waiting"


def _running(node: str, heartbeat_age_s: float, parts: LeaseParts, estimator: Estimator) -> ExchangeSnapshot:
    """The exchange as if it were billed at this moment. Raises ValueError for an unreadable lease."""
    opened = decode_opened(parts.opened or b"")
    record = sweep(opened, decoded(parts.progress) if parts.progress else None, estimator)
    usage = record.reading.usage
    if usage.prompt_tokens is None:
        usage = structs.replace(usage, prompt_tokens=opened.prompt_tokens_estimate)
    return snapshot(
        opened,
        usage,
        reported=record.reading.source is UsageSource.REPORTED,
        state=_state(opened, record.bytes),
        events=record.events,
        size=record.bytes,
        node=node,
        heartbeat_age_s=heartbeat_age_s,
    )
