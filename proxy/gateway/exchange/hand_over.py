"""The hand-over of an exchange whose provider continues in the background.

Invariant: the exchange stays open until `Background` closes it, exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec import UnsetType

from proxy.billing.details import EntryDetails
from proxy.billing.record import BackgroundRun, Opened, Outcome
from proxy.gateway.exchange.open_exchange import OpenExchange
from proxy.gateway.upstream.provider import Provider
from proxy.keys.response_owners import ResponseOwner
from proxy.metering.metered import Metered


@dataclass(frozen=True, slots=True)
class HandOver:
    """An open exchange, and its state at the hand-over."""

    open_exchange: OpenExchange
    provider: Provider
    metered: Metered
    outcome: Outcome
    """the outcome, unless the ended answer gives another"""
    details: EntryDetails
    stops: bool = False
    """cancel the answer at the provider: the budget is used up"""
    headers: str = ""
    """the client's headers that were sent to the provider"""
    events: int = 0
    size: int = 0
    """bytes sent to the client"""
    read: int = 0
    """bytes that the meter got"""
    first_token_at: float | None = None


Background = Callable[[HandOver], None]
"""takes over an open exchange, and closes it when its answer has ended. Never raises"""


def run_for(owner: ResponseOwner, response_id: str, until: float, query: str) -> BackgroundRun:
    """The data for polling an answer. `until`: Unix seconds. `query`: the query of the request."""
    return BackgroundRun(
        response_id=response_id,
        dialect=owner.dialect,
        project_id=owner.project_id,
        until=until,
        credential=owner.credential,
        query=query,
    )


def background_owner(opened: Opened, *, runs: bool) -> ResponseOwner:
    """The owner of an answer that is made in the background. `runs`: its exchange is open."""
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
    """The data for polling the answer."""
    assert not isinstance(opened.background, UnsetType), "its answer is made in the background"
    return opened.background
