"""The body of an accepted answer: how it is relayed, as a stream piece by piece or collected; and how it ended.

Invariant: only a plain answer of a known, small length is collected; all others are relayed at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from proxy.billing.record import Outcome
from proxy.gateway.exchange.lifecycle import End
from proxy.gateway.exchange.open_exchange import OpenExchange, outcome_of
from proxy.gateway.exchange.relay import BodyListener, Relay
from proxy.gateway.exchange.told_cost import ToldCost
from proxy.gateway.exchange.upstream_request import UpstreamRequest
from proxy.gateway.upstream.client import Answer
from proxy.gateway.upstream.provider import Provider
from proxy.http.errors import JSON_TYPE
from proxy.metering.dialect import Dialect
from proxy.metering.metered import Metered, OpaqueMeter
from proxy.metering.wire.framing import SSE, Framing
from proxy.telemetry.metrics import Gaps

# A JSON answer of a known length up to this size is collected and sent in one write; others are relayed piece by piece.
PLAIN_BYTES_MAX = 256 * 1024


@dataclass(slots=True)
class Body:
    """One body, from the head of the answer to the record."""

    answer: Answer
    provider: Provider
    relay: Relay
    framing: Framing
    """the framing of the events; SSE for a body without events"""
    streams: bool
    """the body is a stream, even if it cannot be read"""
    collected: bool
    injected: bool
    """the proxy requested the usage event, which the client does not get"""
    is_whole: bool = False
    """the body has ended, and nothing of it is missing"""
    result: Metered | None = None
    """the result of the meter, once it is read"""

    def metered(self) -> Metered:
        """The meter's result. Raises for a bug of the meter."""
        if self.result is None:
            meter = self.relay.meter
            if meter.bytes_seen > meter.sure_bytes:
                meter.give_up()  # of a body that has ended, nothing
            self.relay.settle_counts()
            self.result = meter.close()
        return self.result

    def metered_anyway(self) -> Metered:
        """The meter's result; if the meter fails, an estimate from the size, since delivered bytes are never free."""
        try:
            return self.metered()
        except Exception:  # noqa: BLE001  the second time the same bug
            return unread(self.relay.bytes)

    def end(self, *, broken: bool) -> Metered:
        """The provider sends nothing more. Returns the meter's result, and raises for a bug of the meter."""
        if not broken:
            self.relay.flush()
        metered = self.metered()
        # Where only the connection's close ends a body, what the provider said tells an end from a break.
        sized = self.answer.head.chunked or self.answer.head.length is not None
        served = outcome_of(End.COMPLETE, metered) is Outcome.SERVED
        self.is_whole = not broken and (sized or served or metered.failed is not None)
        return metered

    def all_read(self) -> bool:
        """True if the client has got the last event. SDKs close as soon as they have read it."""
        self.relay.settle_counts()
        return self.relay.meter.done


def metered_anyway(read: Callable[[], Metered], size: Callable[[], int]) -> Metered:
    """What `read` returns; if the meter fails, an estimate from the size in bytes."""
    try:
        return read()
    except Exception:  # noqa: BLE001  the second time the same bug
        return unread(size())


def unread(size: int) -> Metered:
    """The result of a body of `size` bytes that no meter could read."""
    meter = OpaqueMeter()
    meter.bytes_seen = size
    return meter.close()


def body_of(
    answer: Answer,
    dialect: Dialect,
    asking: UpstreamRequest,
    open_exchange: OpenExchange,
    told_cost: ToldCost | None,
    *,
    streamed: bool,
    gaps: Gaps,
    listener: BodyListener,
) -> Body:
    """The body of `answer`, with its relay. `streamed`: the client requested a stream. `told_cost`: adds the cost, if
    the client gets it."""
    length = answer.head.length
    encoded, content_type = bool(answer.coding), answer.content_type
    meter, inner = asking.meter(answer)
    framing = None if encoded else inner
    plain = framing is None and not encoded
    collected = plain and length is not None and length <= PLAIN_BYTES_MAX
    repeated = open_exchange.keeps if plain and content_type == JSON_TYPE else 0
    stripper = dialect.stripper if asking.injected and not encoded else None  # of a stream labelled as JSON, too
    editor = None if stripper is None or collected else stripper()
    if told_cost is not None and not encoded and not collected:
        editor = told_cost.editor(meter, framing, editor)
    relay = Relay(
        meter=meter,
        editor=editor,
        slot=open_exchange.slot,
        gaps=gaps,
        listener=listener,
        framing=framing or SSE,
        ends=dialect.ends,
        keep_max=PLAIN_BYTES_MAX if collected else repeated,
    )
    streams = framing is not None or (encoded and streamed)
    return Body(answer, asking.route.provider, relay, framing or SSE, streams, collected, asking.injected)
