"""The interfaces that the gateway needs from other packages.

Invariant: runtime passes in the implementations; the gateway does not import them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from proxy.billing.idempotency_record import IdempotencyRecord
from proxy.billing.keys import ApiKey
from proxy.billing.limits import Scope
from proxy.billing.record import Attempt, Opened, UsageRecord
from proxy.billing.reservation import Denied, Hold, LimitLevel
from proxy.billing.response_owner import ResponseOwner
from proxy.gateway.resume.tapes import Tapes
from proxy.gateway.upstream.client import UpstreamClient
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.usage import NOT_RUNNING, Evidence, Running, Usage
from proxy.telemetry.metrics import Gaps


class OutboxFullError(Exception):
    """No exchange can be opened: the disk or the outbox is full, or the journal is broken."""


class Slot(Protocol):
    """The progress of one exchange, which survives this process. Its methods are cheap and never fail."""

    def deliver(self, events: int, size: int) -> None:
        """Record the total events and bytes passed to the client, just before the last of them are written."""

    def note(self, evidence: Evidence, usage: Usage | None, events: int, running: Running = NOT_RUNNING) -> None:
        """Record the meter's current counts. `running`: how the usage is related to the answer."""

    def wait(self) -> None:
        """Record that the exchange still waits for its first word."""


class LeasedSlot(Slot, Protocol):
    """A slot of the progress table that belongs to one exchange."""

    @property
    def index(self) -> int: ...
    def release(self) -> None: ...


class Outbox(Protocol):
    """The journal and the progress table. Each call is synchronous and takes a few microseconds."""

    def claim(self, exchange_id: str) -> LeasedSlot:
        """Raises OutboxFullError."""

    def begin(self, opened: Opened) -> asyncio.Future[None] | None:
        """Record the exchange as opened. A returned future must be awaited before the first response byte; None: it is
        durable. Raises OutboxFullError."""

    def reassign(self, opened: Opened) -> asyncio.Future[None] | None:
        """Replace an opened exchange that fails over to another provider. Returns as `begin` does. If it raises
        OutboxFullError, the exchange is unchanged."""

    def finish(self, record: UsageRecord, slot: LeasedSlot) -> None:
        """Record the end of the exchange, once, and release the slot. Never raises for the disk, but retries."""


class Reservation(Protocol):
    """The reservation of one exchange at the budgets of its key."""

    on_short: Callable[[], None] | None
    """called once, when the cost exceeds the remaining budget"""

    @property
    def hold(self) -> Hold: ...
    @property
    def spends(self) -> bool:
        """True if any level limits money."""

    @property
    def levels(self) -> Sequence[LimitLevel]: ...
    def grow(self, nusd: int) -> None:
        """Raise the reservation to the cost so far. Cheap."""

    def close(self, nusd: int, tokens: int) -> None:
        """End the reservation with the final cost and tokens. Called once."""


class Admission(Protocol):
    """Checks limits and reserves: see `budgets/admission.py`."""

    async def admit(
        self, key: ApiKey, scopes: Sequence[Scope], exchange_id: str, *, nusd: int, tokens: int
    ) -> Reservation | Denied:
        """Reserve at every limited level. Returns Denied if a limit is reached."""


class Claims(Protocol):
    """Idempotency records: see `keys/idempotency.py`."""

    answer_bytes_max: int

    async def claim(self, key_id: str, token: str, body: bytes, exchange_id: str) -> IdempotencyRecord | None:
        """Claim the token for the exchange. Returns the record of an earlier request instead, if there is one. Raises
        OSError if the store is unavailable."""

    async def end(self, key_id: str, token: str, exchange_id: str, *, billed: bool, answer: bytes | None) -> None:
        """Record the end of the exchange. Never raises."""


class ResponseOwners(Protocol):
    """Who made which stored response: see `keys/response_owners.py`."""

    def made(self, response_id: str, owner: ResponseOwner) -> None:
        """Remember the owner. Never raises."""

    async def owner(self, response_id: str) -> ResponseOwner | None:
        """The owner; None: unknown. Raises OSError if the store is unavailable."""

    async def forget(self, response_id: str) -> None:
        """The response does not exist any more. Never raises."""

    async def note(self, response_id: str, seen: bytes) -> None:
        """Keep what was seen of a response that is still made. Raises OSError."""

    async def noted(self, response_id: str) -> bytes | None:
        """The last note, of any process. Raises OSError."""


class Meters(Protocol):
    """The metrics that the gateway records."""

    gaps: Gaps

    def opened(self, *, overhead_s: float) -> None:
        """Admitted and sent upstream, `overhead_s` after the request's arrival."""

    def attempted(self, attempt: Attempt) -> None:
        """A provider failed and the exchange moves to another one."""

    def ended(self, record: UsageRecord, *, estimate_error: float | None) -> None:
        """Closed in the journal. `estimate_error`: signed, relative; None: unknown, or passed to `estimated` later."""

    def estimated(self, opened: Opened, error: float) -> None:
        """The estimate's error of an exchange that has `ended` without one."""

    def refused(self, status: int, code: str | None) -> None:
        """Not admitted."""


class Traces(Protocol):
    """Exports traces of exchanges."""

    def ended(self, record: UsageRecord, traceparent: str | None) -> None:
        """Closed in the journal. `traceparent`: header of its request. Cheap; never raises."""


CheckFiles = Callable[[ApiKey, Collection[str]], Awaitable[set[str]]]
"""the key and the ids of files that its request names → the providers that have them. Raises ApiError: one is not the
key's"""


@dataclass(frozen=True, slots=True)
class Reserve:
    """How much to reserve for a request, and the status when a budget is exceeded."""

    completion_tokens: int
    """per answer, if the request sets no limit"""
    nusd_max: int
    """per request"""
    exceeded_status: int
    """402 or 429"""


@dataclass(frozen=True, slots=True)
class Ports:
    """The implementations that runtime passes in."""

    outbox: Outbox
    upstream: UpstreamClient
    estimator: Estimator
    meters: Meters
    unix_time: Callable[[], float]
    admission: Admission
    claims: Claims
    owners: ResponseOwners
    traces: Traces | None = None
    """None: traces are off"""
    files: CheckFiles | None = None
    """None: there are no files"""
    tapes: Tapes | None = None
    """None: streams cannot be taken up again"""
