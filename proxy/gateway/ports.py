"""The parts of other packages that every exchange uses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from proxy.billing.keys import ApiKey
from proxy.billing.money import Nusd
from proxy.budgets.admission import Admission
from proxy.gateway.budget_headers import BudgetHeaders
from proxy.gateway.dimensions.requests import RequestDimensions
from proxy.gateway.outbox import Outbox
from proxy.gateway.tapes.tapes import Tapes
from proxy.gateway.upstream.client import UpstreamClient
from proxy.http.refused_requests import RefusalLog
from proxy.keys.idempotency import Claims
from proxy.keys.response_owners import ResponseOwners
from proxy.metering.estimator.estimate import Estimator
from proxy.telemetry.metrics import Metrics

if TYPE_CHECKING:  # its SDK is imported only if traces are on
    from proxy.telemetry.traces.export import Traces

CheckFiles = Callable[[ApiKey, Collection[str]], Awaitable[set[str]]]
"""a key and the ids of files in its request → the providers that have them. Raises ApiError: the key may not use one"""


@dataclass(frozen=True, slots=True)
class Reserve:
    """How much to reserve for a request, and the status when a budget is exceeded."""

    completion_tokens: int
    """reserved per answer, if the request sets no limit"""
    nusd_max: Nusd
    """the largest reservation of a request, in nano-dollars"""
    exceeded_status: int
    """the HTTP status, 402 or 429"""


@dataclass(slots=True)
class RequestLimits:
    """The limits of new requests, shared by their handlers. A reload changes them: a request reads each once."""

    reserve: Reserve
    body_bytes_max: int
    """maximum size of a request body, and of a WebSocket message"""
    sockets_per_key_max: int
    """maximum number of WebSockets of one key in this process"""

    def become(self, other: RequestLimits) -> None:
        """Limit new requests as `other` does; admitted ones stay as they are."""
        self.reserve, self.body_bytes_max = other.reserve, other.body_bytes_max
        self.sockets_per_key_max = other.sockets_per_key_max


@dataclass(frozen=True, slots=True)
class Ports:
    """Made once a process, by runtime."""

    outbox: Outbox
    upstream: UpstreamClient
    estimator: Estimator
    meters: Metrics
    unix_time: Callable[[], float]
    admission: Admission
    claims: Claims
    owners: ResponseOwners
    dimensions: RequestDimensions
    traces: Traces | None = None
    """None: traces are off"""
    files: CheckFiles | None = None
    """None: there are no files"""
    tapes: Tapes | None = None
    """None: streams cannot be resumed"""
    budget_headers: BudgetHeaders | None = None
    """None: answers have no headers of budgets"""
    refusals: RefusalLog | None = None
    """None: refused messages of WebSockets are not kept"""
