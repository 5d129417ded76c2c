"""What the gateway needs of the other rooms. They are given by compose; no room is imported for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from proxy.billing.record import Opened, Price, UsageRecord
from proxy.gateway.relay import Slot
from proxy.gateway.upstream import Provider, UpstreamClient
from proxy.metering.estimate import Estimator
from proxy.metrics import Gaps


class OutboxFullError(Exception):
    """No exchange can be opened now: the disk or the outbox is full, or the journal is broken."""


class LeasedSlot(Slot, Protocol):
    """A slot of the progress table, held by one exchange."""

    @property
    def index(self) -> int: ...
    def release(self) -> None: ...


class Outbox(Protocol):
    """The journal and the progress table, as the gateway sees them. Synchronous, a few microseconds each."""

    def claim(self, exchange_id: str) -> LeasedSlot:
        """Raises OutboxFullError."""

    def begin(self, opened: Opened) -> asyncio.Future[None] | None:
        """Open durably. A future must be awaited before the first response byte. Raises OutboxFullError."""

    def finish(self, record: UsageRecord, slot: LeasedSlot) -> None:
        """Close, once, and let go of the slot. Never raises for the disk: what cannot be written now is, later."""


class Meters(Protocol):
    """The metrics the gateway feeds."""

    gaps: Gaps

    def opened(self, *, overhead_s: float) -> None:
        """Admitted and sent on; `overhead_s` from the request's arrival."""

    def ended(self, record: UsageRecord, *, estimate_error: float | None) -> None:
        """Closed in the journal."""

    def refused(self, status: int, code: str | None) -> None:
        """Not admitted."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where a model name leads, and at what price."""

    provider: Provider
    upstream_model: str
    prices: Callable[[float], tuple[Price | None, Price | None]]
    """Unix time → what the key's owner is billed, and what the provider charges us; None where no price is known"""


@dataclass(frozen=True, slots=True)
class Ports:
    """All of them."""

    outbox: Outbox
    upstream: UpstreamClient
    estimator: Estimator
    meters: Meters
    unix_time: Callable[[], float]
