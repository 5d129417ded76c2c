"""Takes the injected usage event out of a stream that did not ask for it.

Law: everything else comes out byte for byte; nothing is held back but the bytes of one unfinished event that can
still turn out to be the usage event. The same for every way of cutting the bytes, in linear time.
"""

from __future__ import annotations

import re

from proxy.metering.dialects.openai.usage_event import UsageEventShape, is_usage_event
from proxy.metering.wire.sse import event_of

# The largest recorded usage event is under 2 KiB. What grows beyond this is let go, whatever it is.
HOLD_BYTES_MAX = 64 << 10

# Two line ends in a row. A CR that an LF follows is no line end of its own.
_END = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
# The second of the two line ends may still miss its LF, the first may be all there is: two bytes to look back.
_LOOK_BACK = 2
_LINE_END = re.compile(rb"[\r\n]")
_FIELD_END = re.compile(rb"[:\r\n]")
_USAGE = b'"usage"'
_LOUD = re.compile(rb'"usage"(?!\s*:\s*null)')
# Longer than b"data": what is longer is another field.
_FIELD_BYTES_MAX = 8


def is_quiet(payload: bytes) -> bool:
    """True if `payload`, fed at an event boundary, ends at one and holds no usage event; False: look closer."""
    # A CR inside changes nothing: whatever the lines are, no usage object is in them, and LF LF ends the last.
    if not (payload.startswith(b"data:") and payload.endswith(b"\n\n")):
        return False
    at = payload.find(_USAGE)
    if at < 0:
        return True
    # OpenAI's `"usage":null` on every event is the common case; anything else is for the regular expression.
    rest = at + len(_USAGE)
    common = payload.startswith(b":null", rest) and payload.find(_USAGE, rest) < 0
    return common or _LOUD.search(payload, at) is None


class UsageStripper:
    """Fed with a stream; gives what may go to the client now."""

    __slots__ = ("_held", "_lf_is_stripped", "_suspect", "_tail", "stripped")

    def __init__(self) -> None:
        self._held = bytearray()  # the unfinished event, while it may be the usage event
        self._suspect: _HeldEvent | None = None  # what is known of it
        self._tail = b""  # the last bytes of an unfinished event that was let go
        self._lf_is_stripped = False  # the stripped event ended with a CR: an LF now belongs to it
        self.stripped = 0
        """events taken out"""

    @property
    def idle(self) -> bool:
        """True between two events: a whole event may go to the client without passing through here."""
        return not self._held and not self._tail and not self._lf_is_stripped

    def feed(self, payload: bytes) -> bytes:
        """What of everything so far may go to the client now."""
        out: list[bytes] = []
        at = 0
        while at < len(payload):
            if self._lf_is_stripped:
                self._lf_is_stripped = False
                at += payload.startswith(b"\n", at)
            else:
                at = self._event(payload, at, out)
        return out[0] if len(out) == 1 else b"".join(out)

    def close(self) -> bytes:
        """The stream is over: what was still held, unless it is the usage event."""
        held, self._held, self._suspect = bytes(self._held), bytearray(), None
        return b"" if held and self._taken(held) else held

    def _event(self, payload: bytes, at: int, out: list[bytes]) -> int:
        """Deals with what `payload` holds of one event, from `at`; gives where the next begins."""
        if self._tail:
            return self._pass(payload, out)
        if self._held:
            return self._hold(payload, out)
        if payload[at] in b"\r\n":
            out.append(payload[at : at + 1])
            return at + 1
        end = _END.search(payload, at)
        if end is None:
            self._held += payload[at:]
            self._doubt(0, out)
            return len(payload)
        self._decide(payload[at : end.end()], end.start() - at, out)
        return end.end()

    def _pass(self, payload: bytes, out: list[bytes]) -> int:
        """The rest of an event that was let go."""
        seen = self._tail + payload
        end = _END.search(seen)
        stop = len(payload) if end is None else end.end() - len(self._tail)
        out.append(payload[:stop])
        self._tail = seen[-_LOOK_BACK:] if end is None else b""
        return stop

    def _hold(self, payload: bytes, out: list[bytes]) -> int:
        """More of the event that is held."""
        held = self._held
        before = len(held)
        held += payload
        end = _END.search(held, max(before - _LOOK_BACK, 0))
        if end is None:
            self._doubt(before, out)
            return len(payload)
        event = bytes(held[: end.end()])
        held.clear()
        self._suspect = None
        self._decide(event, end.start(), out)
        return len(event) - before

    def _decide(self, event: bytes, text_bytes: int, out: list[bytes]) -> None:
        """A whole event: `text_bytes` of it come before its blank line."""
        if text_bytes <= HOLD_BYTES_MAX and self._taken(event):
            self._lf_is_stripped = event.endswith(b"\r")
        else:
            out.append(event)

    def _doubt(self, before: int, out: list[bytes]) -> None:
        """Lets the unfinished event go if it cannot be the usage event."""
        held = self._held
        if self._suspect is None:
            self._suspect = _HeldEvent()
        self._suspect.feed(bytes(held[before:]))
        if self._suspect.cleared or len(held) > HOLD_BYTES_MAX + _LOOK_BACK:
            out.append(bytes(held))
            self._tail = bytes(held[-_LOOK_BACK:])
            self._suspect = None
            held.clear()

    def _taken(self, event: bytes) -> bool:
        if _LOUD.search(event) is None:
            return False
        lines = event.replace(b"\r\n", b"\n").replace(b"\r", b"\n").rstrip(b"\n")
        found = event_of(lines)
        taken = found is not None and is_usage_event(found[0])
        self.stripped += taken
        return taken


class _HeldEvent:
    """An unfinished event, read as it comes: `cleared` once its data cannot be the usage event."""

    __slots__ = ("_field", "_in_value", "_shape", "_value_begins")

    def __init__(self) -> None:
        self._shape = UsageEventShape()
        self._field = b""
        self._in_value = False
        self._value_begins = False

    @property
    def cleared(self) -> bool:
        return self._shape.refuted

    def feed(self, part: bytes) -> None:
        at = 0
        while at < len(part):
            at = self._value(part, at) if self._in_value else self._name(part, at)

    def _name(self, part: bytes, at: int) -> int:
        stop = _FIELD_END.search(part, at)
        end = len(part) if stop is None else stop.start()
        self._field = (self._field + part[at : min(end, at + _FIELD_BYTES_MAX)])[:_FIELD_BYTES_MAX]
        if stop is None:
            return end
        if stop.group() == b":":
            self._in_value = self._value_begins = True
        else:
            self._field = b""
        return end + 1

    def _value(self, part: bytes, at: int) -> int:
        stop = _LINE_END.search(part, at)
        end = len(part) if stop is None else stop.start()
        if self._field == b"data":
            self._shape.feed(part[at + (self._value_begins and part[at : at + 1] == b" ") : end])
        self._value_begins = False
        if stop is None:
            return end
        if self._field == b"data":
            self._shape.feed(b"\n")
        self._field, self._in_value = b"", False
        return end + 1
