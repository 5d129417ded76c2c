"""Meters an answer that nobody can read: by its size alone.

Invariant: what was delivered is never free.
"""

from __future__ import annotations

from proxy.metering.metered import Metered
from proxy.metering.usage import NOT_RUNNING, NOT_SAID, Evidence
from proxy.metering.wire.event_template import TemplateMatch


class OpaqueMeter:
    """Meters a body with an unrequested content encoding, which it cannot read, by its size.

    One byte counts as one character: compression saves about as much of a stream as its framing adds.
    """

    at_boundary = False
    """there are no events"""
    matcher = None
    done = False
    events = 0
    usage = None
    running = NOT_RUNNING
    served_as = NOT_SAID
    response_id = None
    in_background = None
    flags: tuple[str, ...] = ("encoded",)

    def __init__(self) -> None:
        self.evidence = Evidence()
        self.bytes_seen = 0

    def take(self, match: TemplateMatch) -> None:
        """Never called: there is no matcher."""

    def feed(self, payload: bytes) -> None:
        """More of the body."""
        self.bytes_seen += len(payload)

    def fold(self) -> None:
        """Makes `evidence` exact."""
        self.evidence.chars_latin = self.bytes_seen
        self.evidence.text_events = min(1, self.bytes_seen)

    def final_so_far(self, answers: int) -> None:
        """There is no usage."""

    def close(self) -> Metered:
        """The body has ended. Idempotent."""
        self.fold()
        return Metered(
            usage=None, usage_raw=None, evidence=self.evidence, finish_reason=None, response_id=None,
            complete=True, failed=None, events=0, flags=self.flags, timings={},
        )  # fmt: skip
