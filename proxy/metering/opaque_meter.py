"""Meters an unreadable answer by its size alone.

Invariant: delivered bytes are never free.
"""

from __future__ import annotations

from proxy.metering.metered import BodyMeter, Metered
from proxy.metering.tally import Tally


class OpaqueMeter(BodyMeter):
    """Meters a body with an unrequested content encoding, which the proxy cannot read, by its size.

    One byte counts as one character: compression saves about as much of a stream as its framing adds.
    """

    flags: tuple[str, ...] = ("encoded",)

    def __init__(self) -> None:
        super().__init__(Tally())

    def fold(self) -> None:
        """Make the evidence exact."""
        self.tally.evidence.chars_latin = self.bytes_seen
        self.tally.evidence.text_events = min(1, self.bytes_seen)

    def _result(self) -> Metered:
        self.fold()
        return Metered(
            usage=None, usage_raw=None, evidence=self.tally.evidence, finish_reason=None, response_id=None,
            complete=True, failed=None, events=0, flags=self.flags, timings={},
        )  # fmt: skip
