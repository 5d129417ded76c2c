"""Takes the injected usage event out of a stream whose client did not ask for it.

Invariant: everything else comes out byte for byte, the same for every way of cutting the bytes, in linear time. An
event is held until its blank line, where a client acts on it, and only while it can be the usage event: at most
HOLD_BYTES_MAX bytes, and no choice in it.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from proxy.metering.wire.sse import event_of

# The largest recorded usage event is under 2 KiB. A longer event is let go, whatever it is.
HOLD_BYTES_MAX = 64 << 10

# Two line ends in a row. A CR that an LF follows is no line end of its own.
_END = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
# The second of the two line ends may still miss its LF, the first may be all there is: two bytes to look back.
_LOOK_BACK = 2
# As nearly every provider begins the choices of an event that has some: such an event is not held.
_CHOICE = b'"choices":[{'


class UsageStripper:
    """Fed with a stream; gives what may go to the client now."""

    __slots__ = ("_held", "_let_go", "_lf_is_stripped", "stripped")

    def __init__(self) -> None:
        self._held = bytearray()  # the unfinished event; once it was let go, its last bytes
        self._let_go = False
        self._lf_is_stripped = False  # the stripped event ended with a CR: an LF now belongs to it
        self.stripped = 0
        """events taken out"""

    @property
    def idle(self) -> bool:
        """True between two events: a whole event may go to the client without passing through here."""
        return not self._held and not self._lf_is_stripped

    def feed(self, payload: bytes) -> bytes:
        """What of everything so far may go to the client now."""
        out: list[bytes] = []
        at = 0
        while at < len(payload):
            if self._lf_is_stripped:
                self._lf_is_stripped = False
                at += payload.startswith(b"\n", at)
            elif self._held:
                at += self._go_on(payload[at:], out)
            elif payload[at] in b"\r\n":
                out.append(payload[at : at + 1])
                at += 1
            elif (end := _END.search(payload, at)) is not None:
                self._decide(payload[at : end.end()], end.start() - at, out)
                at = end.end()
            else:
                at += self._go_on(payload[at:], out)
        return out[0] if len(out) == 1 else b"".join(out)

    def close(self) -> bytes:
        """The stream is over: what was still held, unless it is the usage event."""
        held = b"" if self._let_go else bytes(self._held)
        self._held.clear()
        return b"" if self._taken(held) else held

    def _go_on(self, more: bytes, out: list[bytes]) -> int:
        """More of the unfinished event: how many bytes of `more` are of it."""
        held, before = self._held, len(self._held)
        held += more
        end = _END.search(held, max(before - _LOOK_BACK, 0))
        size = len(more) if end is None else end.end() - before
        if self._let_go:
            out.append(more[:size])
        elif end is not None:
            self._decide(bytes(held[: end.end()]), end.start(), out)
        elif len(held) > HOLD_BYTES_MAX + _LOOK_BACK or held.find(_CHOICE, max(before - len(_CHOICE), 0)) >= 0:
            out.append(bytes(held))
            self._let_go = True
        if end is not None:
            self._let_go = False
            held.clear()
        elif self._let_go:
            del held[:-_LOOK_BACK]
        return size

    def _decide(self, event: bytes, text_bytes: int, out: list[bytes]) -> None:
        """A whole event: `text_bytes` of it come before its blank line."""
        if text_bytes <= HOLD_BYTES_MAX and self._taken(event):
            self._lf_is_stripped = event.endswith(b"\r")
        else:
            out.append(event)

    def _taken(self, event: bytes) -> bool:
        if _CHOICE in event:
            return False
        found = event_of(event.replace(b"\r\n", b"\n").replace(b"\r", b"\n").rstrip(b"\n"))
        taken = found is not None and is_usage_event(found[0])
        self.stripped += taken
        return taken


class _UsageEvent(msgspec.Struct, gc=False):
    choices: list[Any]
    usage: dict[str, Any]


_usage_event = msgspec.json.Decoder(_UsageEvent).decode


def is_usage_event(event_data: bytes) -> bool:
    """True for a JSON object whose `choices` is an empty list and whose `usage` is an object, each key there once.

    Neither key is spelled with escapes. Azure's first event (`choices` empty, no usage) and `"usage":null` are not it.
    """
    try:
        if b'"usage"' not in event_data or _usage_event(event_data).choices:
            return False
        names: list[str] = json.loads(event_data.decode("utf-8", "replace"), object_pairs_hook=_names, parse_int=str)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return names.count("choices") == names.count("usage") == 1


def _names(pairs: list[tuple[str, Any]]) -> list[str]:
    return [name for name, _ in pairs]
