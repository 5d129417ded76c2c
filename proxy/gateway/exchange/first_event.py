"""Finds answers that have failed before their first event, so that another provider can be asked.

Invariants: no byte of the answer is consumed: the relay gets all of it. It is read only up to its first event, and for
at most the provider's `first_event_s`. An error about the client's request is no failure of the provider, and neither
is an answer that is made in the background.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing, suppress
from typing import Any, NamedTuple

import msgspec

from proxy.billing.record import Outcome
from proxy.foundation.slices import Slice
from proxy.gateway.exchange.lifecycle import End
from proxy.gateway.exchange.open_exchange import outcome_of
from proxy.gateway.upstream.client import Answer
from proxy.gateway.upstream.failures import UpstreamFailedError
from proxy.gateway.upstream.refusals import FAILOVER_ON
from proxy.http.framing import BadFramingError
from proxy.metering.metered import BodyMeter

# Why an answer failed that has nothing in it, not even a reason.
EMPTY = "empty_answer"
# No error is longer.
FAILURE_BYTES_MAX = 16 << 10

# Events that say nothing, so that the next one decides.
_BLANK = frozenset((b"", b"null", b"{}", b"[DONE]"))
# Lists of an event that says nothing if they are empty: so does Azure's first one.
_LISTS = ("choices", "candidates")
# Types and codes of errors about the request, in lower case: OpenAI's, vLLM's, Anthropic's and Google's.
_ABOUT_THE_REQUEST = frozenset((
    "invalid_request_error", "badrequesterror", "bad_request_error", "invalid_argument", "invalid_prompt",
    "context_length_exceeded", "request_too_large", "content_policy_violation", "validation_error",
))  # fmt: skip


class FirstLook(NamedTuple):
    """The result of reading the first event of an answer."""

    failed: str | None = None
    """why the answer failed, as `Metered.failed` has it, or EMPTY; None: no failure in the part that was read"""
    begun: bool = False
    """the provider has begun a valid answer"""


UNKNOWN = FirstLook()
BEGUN = FirstLook(begun=True)


async def first_look(answer: Answer, meter: BodyMeter, limit_s: float, *, may_be_empty: bool) -> FirstLook:
    """Read until the first event, or the end of the answer, or for `limit_s` seconds. `meter`: a new one, used by this
    call only. `may_be_empty`: an answer without output is valid, such as a transcription."""
    with suppress(TimeoutError, UpstreamFailedError, BadFramingError):
        async with asyncio.timeout(limit_s), aclosing(answer.early_payload()) as pieces:
            blanks, line, seen, tally, current = 0, b"", bytearray(), meter.tally, Slice()
            async for piece in pieces:
                # By lines, so that an error in the same piece does not hide an event that came before it.
                for part in piece.splitlines(keepends=True):
                    await current.give_way()
                    seen += part
                    line += part
                    if len(seen) > FAILURE_BYTES_MAX:
                        return UNKNOWN
                    meter.feed(part)
                    meter.fold()
                    if line.endswith(b"\n"):
                        blanks += _is_blank(line)
                        line = b""
                    if tally.failed is not None:
                        return _failed(tally.failed, bytes(seen))
                    if tally.events > blanks or not tally.evidence.empty or tally.usage is not None:
                        return BEGUN
            return _look_at_whole(meter, bytes(seen), may_be_empty=may_be_empty)
    return UNKNOWN


def _look_at_whole(meter: BodyMeter, seen: bytes, *, may_be_empty: bool) -> FirstLook:
    """The result for an answer that is complete."""
    metered = meter.close()
    if metered.failed is not None and not metered.generated:
        return _failed(metered.failed, seen)
    goes_on = metered.response_id is not None and not metered.answer_ended  # in the background
    if metered.generated or goes_on or outcome_of(End.COMPLETE, metered) is Outcome.SERVED:
        return BEGUN
    return UNKNOWN if may_be_empty else FirstLook(EMPTY)


def _failed(code: str, seen: bytes) -> FirstLook:
    return BEGUN if any(map(_is_about_the_request, _errors(seen))) else FirstLook(code)


def _errors(seen: bytes) -> Iterator[dict[str, Any]]:
    """The objects that may describe an error, in the events or the answer so far."""
    texts = [line[5:] for line in seen.split(b"\n") if line.startswith(b"data:")] or [seen]
    for text in texts:
        with suppress(ValueError, RecursionError):
            found = msgspec.json.decode(text)
            while isinstance(found, dict):
                yield found
                found = found.get("error") or found.get("response")


def _is_about_the_request(error: dict[str, Any]) -> bool:
    """Whether every provider would answer with this error: by its status, type or code."""
    words = [str(error[name]) for name in ("code", "status", "status_code", "type") if name in error]
    statuses = [word for word in words if len(word) == 3 and word.isdecimal()]
    if statuses:
        return any(word.startswith("4") and word not in FAILOVER_ON for word in statuses)
    return any(word.lower() in _ABOUT_THE_REQUEST for word in words)


def _is_blank(line: bytes) -> bool:
    """Whether a line of an event stream is an event without content, usage or error."""
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
