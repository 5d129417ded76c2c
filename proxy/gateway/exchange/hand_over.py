"""What an exchange hands over when its provider goes on to make the answer in the background.

Invariant: whoever takes it closes it, exactly once; until then it is open like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec import UnsetType

from proxy.billing.record import BackgroundRun, Opened, Outcome
from proxy.billing.response_owner import ResponseOwner
from proxy.gateway.exchange.open_exchange import OpenExchange
from proxy.gateway.upstream.provider import Provider
from proxy.metering.metered import Metered


@dataclass(frozen=True, slots=True)
class HandOver:
    """An open exchange, as far as it came."""

    open_exchange: OpenExchange
    provider: Provider
    metered: Metered
    outcome: Outcome
    """if nothing more becomes known of its answer"""
    details: dict[str, Any]
    stops: bool = False
    """the provider is to be asked to stop: nobody pays for more"""
    headers: str = ""
    """of the client, which passed to the provider"""
    events: int = 0
    size: int = 0
    """bytes sent to the client"""
    read: int = 0
    """bytes that the meter got"""
    first_token_at: float | None = None


Background = Callable[[HandOver], None]
"""takes over an open exchange, and closes it when its answer has ended. Never raises"""


def run_for(owner: ResponseOwner, response_id: str, until: float, query: str) -> BackgroundRun:
    """What must be known to ask for the answer. `until`: Unix seconds; `query`: of the request."""
    return BackgroundRun(
        response_id=response_id,
        dialect=owner.dialect,
        project_id=owner.project_id,
        until=until,
        credential=owner.credential,
        query=query,
    )


def owner_of(opened: Opened, *, runs: bool) -> ResponseOwner:
    """The owner of the answer that is made in the background. `runs`: its exchange is open."""
    run = run_of(opened)
    return ResponseOwner(
        key_id=opened.key_id,
        project_id=run.project_id,
        provider=opened.provider,
        dialect=run.dialect,
        credential=run.credential,
        exchange_id=opened.exchange_id,
        runs=runs,
    )


def run_of(opened: Opened) -> BackgroundRun:
    """How to ask for its answer."""
    assert not isinstance(opened.background, UnsetType), "its answer is made in the background"
    return opened.background
