"""What the gateway needs of the other rooms. They are given by compose; no room is imported for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from proxy.billing.idempotency_record import IdempotencyRecord
from proxy.billing.keys import ApiKey
from proxy.billing.limits import Scope
from proxy.billing.record import Attempt, Opened, UsageRecord
from proxy.billing.reservation import Denied, Hold, LimitLevel
from proxy.gateway.upstream.client import UpstreamClient
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.usage import Evidence, Usage
from proxy.telemetry.metrics import Gaps


class OutboxFullError(Exception):
    """No exchange can be opened now: the disk or the outbox is full, or the journal is broken."""


class Slot(Protocol):
    """Where the progress of one exchange survives this process. Stores are cheap and never fail."""

    def deliver(self, events: int, size: int) -> None:
        """Record that so many events and bytes are about to have been passed to the client, in all."""

    def note(self, evidence: Evidence, usage: Usage | None, events: int) -> None:
        """Record what the meter has read so far."""


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

    def reassign(self, opened: Opened) -> asyncio.Future[None] | None:
        """What was begun goes on with another provider: from now on it is this. Else as `begin`, and what was begun
        stays as it was if this raises."""

    def finish(self, record: UsageRecord, slot: LeasedSlot) -> None:
        """Close, once, and let go of the slot. Never raises for the disk: what cannot be written now is, later."""


class Reservation(Protocol):
    """What an exchange holds of its key's budgets."""

    on_short: Callable[[], None] | None
    """called once, when the exchange has grown beyond what is left"""

    @property
    def hold(self) -> Hold: ...
    @property
    def spends(self) -> bool:
        """Money is limited."""

    @property
    def levels(self) -> Sequence[LimitLevel]: ...
    def grow(self, nusd: int) -> None:
        """It has cost so much by now. Cheap."""

    def close(self, nusd: int, tokens: int) -> None:
        """It has ended, and comes to so much. Once."""


class Admission(Protocol):
    """Who may go on: `budgets/admission.py`, as the gateway sees it."""

    async def admit(
        self, key: ApiKey, scopes: Sequence[Scope], exchange_id: str, *, nusd: int, tokens: int
    ) -> Reservation | Denied:
        """Hold so much at every level that limits anything, or say what is in the way."""


class Claims(Protocol):
    """Which requests came before: `keys/idempotency.py`, as the gateway sees it."""

    answer_bytes_max: int

    async def claim(self, key_id: str, token: str, body: bytes, exchange_id: str) -> IdempotencyRecord | None:
        """Take this request for the exchange, or say who has it. Raises OSError: nobody can say."""

    async def end(self, key_id: str, token: str, exchange_id: str, *, billed: bool, answer: bytes | None) -> None:
        """The exchange has ended. Never raises."""


class Meters(Protocol):
    """The metrics the gateway feeds."""

    gaps: Gaps

    def opened(self, *, overhead_s: float) -> None:
        """Admitted and sent on; `overhead_s` from the request's arrival."""

    def attempted(self, attempt: Attempt) -> None:
        """A provider gave nothing, and another one is asked."""

    def ended(self, record: UsageRecord, *, estimate_error: float | None) -> None:
        """Closed in the journal. `estimate_error`: signed, relative; None: not known, or not yet."""

    def estimated(self, opened: Opened, error: float) -> None:
        """What was not known yet."""

    def refused(self, status: int, code: str | None) -> None:
        """Not admitted."""


class Traces(Protocol):
    """Whoever makes traces of exchanges."""

    def ended(self, record: UsageRecord, traceparent: str | None) -> None:
        """Closed in the journal; its request came with this header. Cheap, and never raises."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """How much is held for a request, and what it is told when a budget is spent."""

    completion_tokens: int
    """of one answer, where the request names no limit"""
    nusd_max: int
    """of one request"""
    exceeded_status: int
    """402 or 429"""


@dataclass(frozen=True, slots=True)
class Ports:
    """All of them."""

    outbox: Outbox
    upstream: UpstreamClient
    estimator: Estimator
    meters: Meters
    unix_time: Callable[[], float]
    admission: Admission
    claims: Claims
    traces: Traces | None = None
    """None: nobody does"""
