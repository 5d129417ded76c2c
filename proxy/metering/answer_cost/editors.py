"""Editors of a relayed answer: each usage object gets the cost after its event.

Invariants: all bytes outside usage objects are unchanged, for every way of cutting the bytes, in linear time. Only an
unfinished event is held, or a whole JSON answer. Longer ones are released unedited.
"""

from __future__ import annotations

import re
from itertools import pairwise

from proxy.metering.answer_cost.edit import CostSoFar, UsagePath, event_with_cost, with_cost
from proxy.metering.meter import JSON_BYTES_MAX
from proxy.metering.wire.brackets import BLANKS
from proxy.metering.wire.sse import EVENT_BYTES_MAX

# Two consecutive line ends. CR LF is one line end.
_END = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
# The last bytes of an unfinished event that can be part of _END.
_LOOK_BACK = 2

ANSWER_PATH: UsagePath = ("usage",)
"""path of the usage object in a JSON answer of any dialect"""


class EventCostEditor:
    """The `AnswerEditor` of a stream. `cost`: the cost up to the last event that the meter was fed."""

    follows_meter = True
    stripped = 0

    def __init__(self, path: UsagePath, cost: CostSoFar) -> None:
        self._path, self._cost = path, cost
        self._held = bytearray()  # the unfinished event
        self._released = 0  # bytes of it that were released, because it is too long

    @property
    def idle(self) -> bool:
        return not self._held

    def pieces(self, payload: bytes) -> list[bytes]:
        tail = bytes(self._held[-_LOOK_BACK:])
        ends = [end.end() - len(tail) for end in _END.finditer(tail + payload)]
        cuts = [0, *ends, len(payload)]
        return [payload[a:b] for a, b in pairwise(cuts) if a < b]

    def feed(self, payload: bytes) -> bytes:
        held, searched = self._held, max(len(self._held) - _LOOK_BACK, 0)
        held += payload
        out: list[bytes] = []
        begin = 0
        for end in _END.finditer(held, searched):
            event = bytes(held[begin : end.end()])
            whole = not self._released and len(event) <= EVENT_BYTES_MAX
            out.append(event_with_cost(event, self._path, self._cost) if whole else event[self._released :])
            begin, self._released = end.end(), 0
        del held[:begin]
        self._bound(out)
        return b"".join(out)

    def close(self) -> bytes:
        rest = bytes(self._held[self._released :])
        self._held.clear()
        return rest

    def _bound(self, out: list[bytes]) -> None:
        """Release bytes that cannot be an event, or are too long."""
        held = self._held
        if held and not held.strip(b"\r\n"):
            out.append(bytes(held))
            held.clear()
        elif self._released or len(held) > EVENT_BYTES_MAX + _LOOK_BACK:
            out.append(bytes(held[self._released :]))
            del held[:-_LOOK_BACK]
            self._released = len(held)


class JsonCostEditor:
    """The `AnswerEditor` of a JSON answer that is relayed as it arrives: holds it to its end. There are no events."""

    follows_meter = True
    stripped = 0
    idle = True

    def __init__(self, cost: CostSoFar) -> None:
        self._cost = cost
        self._held: bytearray | None = bytearray()  # None: it is passed on

    def pieces(self, payload: bytes) -> list[bytes]:
        return [payload]

    def feed(self, payload: bytes) -> bytes:
        held = self._held
        if held is None:
            return payload
        held += payload
        head = held[:_HEAD_BYTES].lstrip(BLANKS)
        if len(held) <= JSON_BYTES_MAX and (not head or head.startswith(b"{")):
            return b""
        self._held = None  # too long, or events that are labelled as JSON
        return bytes(held)

    def close(self) -> bytes:
        held, self._held = self._held, None
        return b"" if held is None else with_cost(bytes(held), ANSWER_PATH, self._cost)


# White space before a document; with more of it, an answer is not held.
_HEAD_BYTES = 256
