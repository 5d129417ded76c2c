"""The partial result of an answer that is made in the background, from its readers in all processes.

Invariants: a partial result holds counters and the provider's usage, no text. Merging two never loses an end, nor the
counts up to the last event that any reader got.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
from msgspec import structs

from proxy.metering.metered import Metered
from proxy.metering.usage import Evidence


class PartialResult(msgspec.Struct, frozen=True):
    """The counts of one or more readers of an answer."""

    evidence: Evidence = msgspec.field(default_factory=Evidence)
    """counts of everything generated so far"""
    ended: Metered | None = None
    """the meter's result of the ended answer; None: it has not ended"""

    @property
    def nothing(self) -> bool:
        """True without any counts."""
        return self.ended is None and self.evidence.empty

    @property
    def usage_known(self) -> bool:
        """True if the answer has ended with a usage."""
        return self.ended is not None and self.ended.usage is not None

    def merged(self, other: PartialResult) -> PartialResult:
        """The larger counts of both, and the end if one has it."""
        ended = other.ended if self.ended is None or (other.usage_known and not self.usage_known) else self.ended
        return PartialResult(larger(self.evidence, other.evidence), ended)

    def ending(self, metered: Metered) -> Metered:
        """`metered` with the larger counts. A usage is final only with the end of the answer."""
        evidence = larger(metered.evidence, self.evidence)
        followed = not metered.answer_ended and metered.usage is not None and evidence is not metered.evidence
        return structs.replace(metered, evidence=evidence, usage_behind=metered.usage_behind + followed)


NO_RESULT = PartialResult()


def partial_result(metered: Metered, events_before: int = 0) -> PartialResult:
    """The result of one reader. `events_before`: earlier events that its stream did not repeat; they count as long as
    the others."""
    ended = structs.replace(metered, held=None) if metered.answer_ended else None
    return PartialResult(scaled(metered.evidence, metered.events, events_before), ended)


def scaled(evidence: Evidence, events: int, before: int) -> Evidence:
    """Extrapolate `evidence` of `events` events to the events `before` them; rounded up."""
    if not events or before <= 0:
        return replace(evidence)
    return Evidence(*(-(-getattr(evidence, name) * (events + before) // events) for name in Evidence.__slots__))


def larger(one: Evidence, other: Evidence) -> Evidence:
    """The evidence with more text. Of two with equal text, the one with more events: it is from a stream."""
    return other if (other.chars, other.text_events) > (one.chars, one.text_events) else one


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(PartialResult).decode


def encoded(seen: PartialResult) -> bytes:
    """The bytes that other processes read."""
    return _encode(seen)


def decoded(note: bytes | None) -> PartialResult:
    """The result in `note`; an empty one without a note, or if another version wrote it."""
    try:
        return NO_RESULT if note is None else _decode(note)
    except msgspec.MsgspecError:
        return NO_RESULT
