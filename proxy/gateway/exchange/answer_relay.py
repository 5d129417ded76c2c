"""Chooses how the body of an accepted answer is relayed: as a stream, piece by piece, or collected.

Invariant: only a plain answer of a known, small length is collected; all others are relayed at once.
"""

from __future__ import annotations

from typing import NamedTuple

from proxy.gateway.exchange.open_exchange import OpenExchange
from proxy.gateway.exchange.relay import BodyListener, Relay
from proxy.gateway.exchange.told_cost import ToldCost
from proxy.gateway.exchange.upstream_request import UpstreamRequest
from proxy.gateway.upstream.client import Answer
from proxy.http.errors import JSON_TYPE
from proxy.metering.compressed import compressed_meter
from proxy.metering.dialect import NO_HEADERS, Dialect
from proxy.metering.wire.framing import SSE, Framing
from proxy.telemetry.metrics import Gaps

# A JSON answer of a known length up to this size is collected and sent in one write; others are relayed piece by piece.
PLAIN_BYTES_MAX = 256 * 1024


class AnswerRelay(NamedTuple):
    """The relay of one answer."""

    relay: Relay
    framing: Framing
    """the framing of the events; SSE for a body without events"""
    streams: bool
    """the body is a stream, even if it cannot be read"""
    collected: bool


def without_usage(body: bytes, dialect: Dialect) -> bytes:
    """A collected answer; of a stream that is labelled as JSON, without the usage event, which the proxy requested."""
    if dialect.stripper is None or not body.startswith(b"data:"):
        return body
    stripper = dialect.stripper()
    return stripper.feed(body) + stripper.close()


def relay_of(
    answer: Answer,
    dialect: Dialect,
    asking: UpstreamRequest,
    open_exchange: OpenExchange,
    told_cost: ToldCost | None,
    *,
    streamed: bool,
    gaps: Gaps,
    listener: BodyListener,
) -> AnswerRelay:
    """The relay for the body of `answer`. `streamed`: the client requested a stream. `told_cost`: adds the cost, if the
    client gets it."""
    length = answer.head.length
    encoded, content_type = bool(answer.coding), answer.content_type
    inner = dialect.framing(content_type, streamed=streamed)
    names = dialect.headers_read
    told = {name: value for name, value in answer.head.headers if name in names} if names else NO_HEADERS
    meter = asking.meter(inner, told)
    framing = None if encoded else inner
    plain = framing is None and not encoded
    collected = plain and length is not None and length <= PLAIN_BYTES_MAX
    repeated = open_exchange.keeps if plain and content_type == JSON_TYPE else 0
    stripper = dialect.stripper if asking.injected and not encoded else None  # of a stream labelled as JSON, too
    editor = None if stripper is None or collected else stripper()
    if told_cost is not None and not encoded and not collected:
        editor = told_cost.editor(meter, framing, editor)
    relay = Relay(
        meter=compressed_meter(answer.coding, meter) if encoded else meter,
        editor=editor,
        slot=open_exchange.slot,
        gaps=gaps,
        listener=listener,
        framing=framing or SSE,
        ends=dialect.ends,
        keep_max=PLAIN_BYTES_MAX if collected else repeated,
    )
    return AnswerRelay(relay, framing or SSE, framing is not None or (encoded and streamed), collected)
