"""Snapshots of running exchanges.

Invariants: counts and money only, no text of a prompt or an answer. The numbers of a running stream are preliminary:
what would be billed if it ended now.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal, Protocol

import msgspec

from proxy.billing.money import Nusd
from proxy.billing.record import BillableParts, Opened
from proxy.billing.settlement import amount
from proxy.gateway.exchange.relay import Relay
from proxy.gateway.exchange.spending import Spending
from proxy.metering.usage import Usage

# Ended exchanges that are kept; older ones are in the ledger. About 300 bytes each.
REMEMBERED_MAX = 20_000


State = Literal["waiting", "streaming", "draining", "background"]
"""waiting: for the provider's first byte; streaming; draining: the client has disconnected, the rest is read;
background: the provider makes the answer, and is polled"""


class ExchangeSnapshot(msgspec.Struct, frozen=True):
    """A running exchange. Money: nano-dollars; None: unknown price. Times: Unix seconds."""

    exchange_id: str
    key_id: str
    key_alias: str
    provider: str
    model: str
    endpoint: str
    streamed: bool
    started_at: float
    state: State
    events: int
    bytes: int
    prompt_tokens: int
    completion_tokens: int
    usage_source: Literal["reported", "estimated"]
    charge_nusd: Nusd | None
    cost_nusd: Nusd | None
    node: str | None = None
    """the reporting proxy, if it is on another machine"""
    heartbeat_age_s: float = 0.0
    """seconds since its last report; its numbers were a few seconds old at most then"""


class LiveExchange(Protocol):
    """An exchange of this process that has no record yet."""

    exchange_id: str

    def running(self) -> ExchangeSnapshot:
        """The current snapshot of the exchange."""

    def shut_down(self) -> None:
        """The grace time is over."""

    def stop_stream(self) -> bool:
        """An operator stops it. False: it is not a stream that can be stopped, or has ended."""


def running(opened: Opened, relay: Relay | None, spending: Spending, *, left: bool) -> ExchangeSnapshot:
    """The current snapshot."""
    if relay is not None:
        relay.settle_counts()
    return snapshot(
        opened,
        Usage(opened.prompt_tokens_estimate) if relay is None else spending.usage(relay.meter),
        reported=relay is not None and relay.meter.tally.usage is not None,
        state="draining" if left else "waiting" if relay is None else "streaming",
        events=0 if relay is None else relay.events,
        size=0 if relay is None else relay.bytes,
    )


def snapshot(
    opened: Opened,
    usage: Usage,
    *,
    reported: bool,
    state: State,
    events: int,
    size: int,
    node: str | None = None,
    heartbeat_age_s: float = 0.0,
) -> ExchangeSnapshot:
    """A snapshot with this usage."""
    return ExchangeSnapshot(
        exchange_id=opened.exchange_id,
        key_id=opened.key_id,
        key_alias=opened.key_alias,
        provider=opened.provider,
        model=opened.model,
        endpoint=opened.endpoint,
        streamed=opened.streamed,
        started_at=opened.started_at,
        state=state,
        events=events,
        bytes=size,
        prompt_tokens=usage.prompt_tokens or 0,
        completion_tokens=usage.completion_tokens or 0,
        usage_source="reported" if reported else "estimated",
        charge_nusd=amount(opened.price, usage, BillableParts.EVERYTHING),
        cost_nusd=amount(opened.cost, usage, BillableParts.EVERYTHING),
        node=node,
        heartbeat_age_s=heartbeat_age_s,
    )


class ExchangeOwners:
    """The keys of this process's running exchanges, and of the last ended ones, which may not be in the ledger yet."""

    def __init__(self) -> None:
        self._running: dict[str, str] = {}
        self._ended: OrderedDict[str, str] = OrderedDict()

    def began(self, exchange_id: str, key_id: str) -> None:
        self._running[exchange_id] = key_id

    def ended(self, exchange_id: str) -> None:
        """Keep the exchange among the last ended ones."""
        self._ended[exchange_id] = self._running.pop(exchange_id)
        if len(self._ended) > REMEMBERED_MAX:
            self._ended.popitem(last=False)

    def key_of(self, exchange_id: str) -> str | None:
        """The key id of an exchange; None if unknown."""
        return self._running.get(exchange_id) or self._ended.get(exchange_id)
