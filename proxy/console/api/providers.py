"""Providers: what they are configured as, how they have answered, and whether the proxies use them now.

Invariants: no secret of a provider is shown, and of its URL only the origin. Operators only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from sqlalchemy import Engine

from proxy.console.api.endpoints import ApiCall, ApiReply, Endpoint
from proxy.foundation.times import iso_utc
from proxy.gateway.upstream.health import BreakerState
from proxy.reports.provider_results import ProviderError, ProviderResults, read_provider_results
from proxy.settings.operators import OperatorRole
from proxy.storage.executor import BoundedExecutor

HOURS_DEFAULT, HOURS_MAX = 24, 31 * 24


class CredentialState(msgspec.Struct, frozen=True, kw_only=True):
    """One credential of a provider, in one process."""

    name: str
    rests_s: float
    """seconds for which it gets no request, after a rate limit or a rejection; 0: none"""
    is_rejected: bool
    """the provider's last answer rejected it"""


class ProviderState(msgspec.Struct, frozen=True, kw_only=True):
    """A provider as one process of this port sees it."""

    provider: str
    process: int
    """the number of the process, from 0"""
    breaker: BreakerState
    failures: int
    """failures since the last answer"""
    away_s: float
    """seconds for which requests go to other providers, if there are any; 0: none"""
    credentials: list[CredentialState]


class ConfiguredProvider(msgspec.Struct, frozen=True, kw_only=True):
    """A provider in the settings."""

    name: str
    base_url: str
    """scheme, host and port only"""
    models: list[str]
    """the configured models that it may serve, patterns included"""


class ProvidersQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The time span of the results."""

    hours: Annotated[int, Meta(ge=1, le=HOURS_MAX)] = HOURS_DEFAULT
    """until now"""


class ErrorShown(msgspec.Struct, frozen=True, kw_only=True):
    """A failure of a provider."""

    at: str
    exchange_id: str
    model: str
    what: str
    """the entry's detail `failed`, or its outcome"""
    status: int | None
    """HTTP status of the provider's answer"""
    was_passed_on: bool
    """another attempt followed"""


class ProviderShown(msgspec.Struct, frozen=True, kw_only=True):
    """One provider."""

    object: Literal["provider"] = "provider"
    name: str
    is_configured: bool
    """false: only in entries of the time span"""
    base_url: str | None
    models: list[str]
    requests: int
    """exchanges that it has ended"""
    failed: int
    failed_attempts: int
    """further requests that failed there, after which another attempt was made (failover)"""
    error_rate: float | None
    """failed part of requests and failed attempts; 0.5 is 50 %; null: no request"""
    first_token_p95_ms: float | None
    breaker: BreakerState | None
    """the worst of all processes of this port: `open`, `half_open`, `closed`; null: not configured"""
    rests_s: float
    """the longest time for which a process sends it no request if it has others"""
    credentials_resting: int
    credentials_rejected: int
    states: list[ProviderState]
    """the state in each process of this port; other machines show theirs in their own consoles"""
    errors: list[ErrorShown]
    """the latest, newest first"""


class Providers(msgspec.Struct, frozen=True, kw_only=True):
    """All providers: those with the highest error rate first."""

    object: Literal["list"] = "list"
    since: str = msgspec.field(name="from")
    until: str = msgspec.field(name="to")
    listed: list[ProviderShown] = msgspec.field(name="data")


@dataclass(frozen=True, slots=True)
class ProvidersApi:
    """The route `/v1/providers`."""

    engine: Engine
    threads: BoundedExecutor
    configured: Callable[[], Sequence[ConfiguredProvider]]
    states: Callable[[], Awaitable[Sequence[ProviderState]]]
    unix_time: Callable[[], float]

    def endpoints(self) -> Iterable[Endpoint]:
        """The endpoint of this API."""
        yield Endpoint(
            method="GET", path="/v1/providers", summary="Providers, their results and their health.",
            serve=self.listed, query=ProvidersQuery, answers={200: Providers}, role=OperatorRole.READ,
        )  # fmt: skip

    async def listed(self, call: ApiCall) -> ApiReply:
        """All providers. Raises OSError."""
        until = self.unix_time()
        since = until - call.query.hours * 3_600
        results = await self.threads.run(read_provider_results, self.engine, since, until)
        states: dict[str, list[ProviderState]] = {}
        for state in await self.states():
            states.setdefault(state.provider, []).append(state)
        configured = {one.name: one for one in self.configured()}
        names = sorted({*configured, *results})
        shown = [_shown(name, configured.get(name), results, states.get(name, [])) for name in names]
        shown.sort(key=lambda one: -(one.error_rate or 0.0))
        return ApiReply(Providers(since=iso_utc(since), until=iso_utc(until), listed=shown))


_WORST = (BreakerState.OPEN, BreakerState.HALF_OPEN, BreakerState.CLOSED)


def _shown(
    name: str,
    configured: ConfiguredProvider | None,
    results: Mapping[str, ProviderResults],
    states: Sequence[ProviderState],
) -> ProviderShown:
    result = results.get(name, ProviderResults())
    credentials = [one for state in states for one in state.credentials]
    return ProviderShown(
        name=name,
        is_configured=configured is not None,
        base_url=None if configured is None else configured.base_url,
        models=[] if configured is None else configured.models,
        requests=result.requests,
        failed=result.failed,
        failed_attempts=result.failed_attempts,
        error_rate=result.error_rate,
        first_token_p95_ms=result.first_token_p95_ms,
        breaker=next((worst for worst in _WORST if any(one.breaker is worst for one in states)), None),
        rests_s=max((one.away_s for one in states), default=0.0),
        credentials_resting=len({one.name for one in credentials if one.rests_s > 0}),
        credentials_rejected=len({one.name for one in credentials if one.is_rejected}),
        states=list(states),
        errors=list(map(_error, result.errors)),
    )


def _error(error: ProviderError) -> ErrorShown:
    return ErrorShown(
        at=iso_utc(error.at),
        exchange_id=error.exchange_id,
        model=error.model,
        what=error.what,
        status=error.status,
        was_passed_on=error.was_passed_on,
    )
