"""Looks whether an accepted answer has failed before its first event: then another provider can be asked.

Invariants: nothing of the answer is taken: the relay gets all of it. It is looked at only until its first event, and
not longer than a provider's `first_event_s`.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress

import msgspec

from proxy.billing.record import Outcome
from proxy.gateway.exchange.lifecycle import End
from proxy.gateway.exchange.open_exchange import outcome_of
from proxy.gateway.upstream.client import Answer
from proxy.gateway.upstream.connection import UpstreamFailedError
from proxy.metering.metered import BodyMeter

# Why an answer failed that has nothing in it, not even a reason.
EMPTY = "empty_answer"

# No error is longer; and so many bytes are read within one turn of the event loop, whatever they are.
FAILURE_BYTES_MAX = 16 << 10

# Events that say nothing, so that the next one decides.
_BLANK = frozenset((b"", b"null", b"{}", b"[DONE]"))
# Lists of an event that says nothing if they are empty: so does Azure's first one.
_LISTS = ("choices", "candidates")


async def failure_in(answer: Answer, meter: BodyMeter, limit_s: float) -> str | None:
    """Why the answer failed before its first event, as `Metered.failed` has it, or EMPTY. None: it did not within
    `limit_s` seconds. `meter`: one for this call alone."""
    with suppress(TimeoutError, UpstreamFailedError):
        async with asyncio.timeout(limit_s), aclosing(answer.early_pieces()) as pieces:
            blanks, line, tally = 0, b"", meter.tally
            async for piece in pieces:
                if meter.bytes_seen + len(piece) > FAILURE_BYTES_MAX:
                    return None
                meter.feed(piece)
                meter.fold()
                *lines, line = (line + piece).split(b"\n")
                blanks += sum(map(_is_blank, lines))
                if tally.failed is not None:
                    return tally.failed
                if tally.events > blanks or not tally.evidence.empty or tally.usage is not None:
                    return None
            return _failure_of(meter)
    return None


def _is_blank(line: bytes) -> bool:
    """Of a line of an event stream: whether it is an event that says nothing."""
    if not line.startswith(b"data:"):
        return False
    data = line[5:].strip()
    if data in _BLANK:
        return True
    if not any(name.encode() in data for name in _LISTS):
        return False
    try:
        event = msgspec.json.decode(data)
    except ValueError:
        return False
    return isinstance(event, dict) and any(event.get(name) == [] for name in _LISTS)


def _failure_of(meter: BodyMeter) -> str | None:
    """Of an answer that is complete."""
    metered = meter.close()
    if metered.generated or outcome_of(End.COMPLETE, metered) is Outcome.SERVED:
        return None
    return metered.failed or EMPTY
