"""What the proxies of other machines run, as the board of leases has it. Law: looking costs little: the board is asked
every few seconds while somebody looks, not for long, and nodes that run too many streams are counted only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from typing import Protocol

import msgspec
from msgspec import structs

from proxy.console.api.live import RemoteCoverage
from proxy.delivery.leases import LeaseParts
from proxy.gateway.exchange.running import ExchangeSnapshot, snapshot
from proxy.journal.frames import decode_opened
from proxy.journal.progress import decoded
from proxy.journal.recovery import sweep
from proxy.metering.estimator.estimate import VERSION, Estimator
from proxy.metering.usage import UsageSource

# A lease is renewed every 3 s or so: asking more often tells nothing new.
LOOK_S = 2.0
ANSWER_S_MAX = 1.0
# Leases read at a look: 1 kB and 0.03 ms each; the newest 500 streams are all that is shown, anyway.
READ_MAX = 500
# Read without a pause: 0.3 ms, in which no stream moves.
AT_ONCE = 10


class LeaseReader(Protocol):
    """What is asked of `delivery/leases.py`. Every method raises QueueUnavailable (an OSError)."""

    async def nodes(self) -> Mapping[str, str]: ...
    async def counts(self, nodes: Collection[str]) -> Mapping[str, int]: ...
    async def of(self, node: str) -> Mapping[str, LeaseParts]: ...


class RemoteSnapshot(msgspec.Struct, frozen=True):
    """One look."""

    running: tuple[ExchangeSnapshot, ...] = ()
    nodes: int = 0
    coverage: RemoteCoverage = "unknown"


class RemoteExchanges:
    """Asks the board, and remembers for a moment what it said."""

    def __init__(self, board: LeaseReader, estimator: Estimator) -> None:
        self._board = board
        self._estimator = estimator
        self._found = RemoteSnapshot()
        self._looked_at = float("-inf")
        self._beats: dict[str, tuple[str, float]] = {}
        """node → its last beat, and when that was first seen"""

    async def look(self, ours: Collection[str]) -> RemoteSnapshot:
        """What runs on nodes that are not ours. Never raises: what cannot be asked is not known."""
        if time.monotonic() >= self._looked_at + LOOK_S:
            try:
                async with asyncio.timeout(ANSWER_S_MAX):
                    self._found = await self._look(ours)
            except (OSError, TimeoutError):
                self._found = RemoteSnapshot()
            self._looked_at = time.monotonic()
        return self._found

    async def _look(self, ours: Collection[str]) -> RemoteSnapshot:
        beats = {node: beat for node, beat in (await self._board.nodes()).items() if node not in ours}
        self._remember(beats)
        counts = await self._board.counts(sorted(beats))
        found: list[ExchangeSnapshot] = []
        coverage: RemoteCoverage = "complete"
        for node in sorted(beats, key=lambda node: counts[node]):
            if len(found) + counts[node] > READ_MAX or (counts[node] and not await self._read(node, found)):
                coverage = "partial"
        return RemoteSnapshot(tuple(found), len(beats), coverage)

    def _remember(self, beats: Mapping[str, str]) -> None:
        now, before = time.monotonic(), self._beats
        self._beats = {
            node: before[node] if node in before and before[node][0] == beat else (beat, now)
            for node, beat in beats.items()
        }

    async def _read(self, node: str, found: list[ExchangeSnapshot]) -> bool:
        """Add what the node runs. False: one of them cannot be read here."""
        heartbeat_age_s = time.monotonic() - self._beats[node][1]
        whole = True
        for number, parts in enumerate((await self._board.of(node)).values()):
            if number % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
            try:
                found.append(_running(node, heartbeat_age_s, parts, self._estimator))
            except ValueError:  # of another version, which its own proxy shows
                whole = False
        return whole


def _running(node: str, heartbeat_age_s: float, parts: LeaseParts, estimator: Estimator) -> ExchangeSnapshot:
    """What would be billed if it had ended there. Raises ValueError."""
    opened = decode_opened(parts.opened or b"")
    record = sweep(opened, decoded(parts.progress) if parts.progress else None, estimator, estimator_version=VERSION)
    usage = record.reading.usage
    if usage.prompt_tokens is None:
        usage = structs.replace(usage, prompt_tokens=opened.prompt_tokens_estimate)
    return snapshot(
        opened,
        usage,
        reported=record.reading.source is UsageSource.REPORTED,
        state="streaming" if record.bytes else "waiting",
        events=record.events,
        size=record.bytes,
        node=node,
        heartbeat_age_s=heartbeat_age_s,
    )
