"""What was seen of an answer that is made in the background, by whoever read it, in any process.

Invariants: it holds counters and the provider's usage, no text. Merging never loses: neither an end nor what was
generated up to the last event that anybody got.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
from msgspec import structs

from proxy.metering.metered import Metered
from proxy.metering.usage import Evidence


class Sighting(msgspec.Struct, frozen=True):
    """A reader's."""

    evidence: Evidence = msgspec.field(default_factory=Evidence)
    """of all that was generated up to there"""
    ended: Metered | None = None
    """the ended answer"""

    @property
    def nothing(self) -> bool:
        """Nothing was seen."""
        return self.ended is None and self.evidence.empty

    @property
    def usage_known(self) -> bool:
        """The answer has ended with a usage."""
        return self.ended is not None and self.ended.usage is not None

    def merged(self, other: Sighting) -> Sighting:
        """Both."""
        ended = other.ended if self.ended is None or (other.usage_known and not self.usage_known) else self.ended
        return Sighting(larger(self.evidence, other.evidence), ended)

    def ending(self, metered: Metered) -> Metered:
        """`metered`, with all that was seen to be generated. A usage is final only with the end of the answer."""
        evidence = larger(metered.evidence, self.evidence)
        followed = not metered.answer_ended and metered.usage is not None and evidence is not metered.evidence
        return structs.replace(metered, evidence=evidence, usage_behind=metered.usage_behind + followed)


NOTHING_SEEN = Sighting()


def sighting(metered: Metered, events_before: int = 0) -> Sighting:
    """Of one reader. `events_before`: those that its stream did not repeat; they were as long as the others."""
    ended = structs.replace(metered, held=None) if metered.answer_ended else None
    return Sighting(scaled(metered.evidence, metered.events, events_before), ended)


def scaled(evidence: Evidence, events: int, before: int) -> Evidence:
    """A copy of `evidence` of `events` events, for those `before` them, too; rounded up."""
    if not events or before <= 0:
        return replace(evidence)
    return Evidence(*(-(-getattr(evidence, name) * (events + before) // events) for name in Evidence.__slots__))


def larger(one: Evidence, other: Evidence) -> Evidence:
    """The one with more text. The events of a stream tell more than a whole answer of the same length."""
    return other if (other.chars, other.text_events) > (one.chars, one.text_events) else one


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Sighting).decode


def encoded(seen: Sighting) -> bytes:
    """As other processes read it."""
    return _encode(seen)


def decoded(note: bytes | None) -> Sighting:
    """The same, of none or of another version: nothing."""
    try:
        return NOTHING_SEEN if note is None else _decode(note)
    except msgspec.MsgspecError:
        return NOTHING_SEEN
