"""Strips the injected usage event from a stream whose client did not request it.

Invariants: all other bytes are unchanged, for every way of cutting the bytes, in linear time. An event is held until
its blank line, where a client processes it, and only while it can be the usage event: at most HOLD_BYTES_MAX bytes and
without a choice that says something (LiteLLM's usage event has one with an empty `delta`).
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from proxy.metering.wire.sse import event_of

# The largest recorded usage event is under 2 KiB. A longer event is released unchecked.
HOLD_BYTES_MAX = 64 << 10

# Two consecutive line ends. CR LF is one line end.
_END = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
# The second of the two line ends may still miss its LF, the first may be all there is: two bytes to look back.
_LOOK_BACK = 2
# Nearly every provider begins the text of a choice so: such an event is not held.
_TEXT = re.compile(rb'"delta":\{"|"choices":\[\{"text"')
_DELTA = b'"delta":{"'  # of nearly all
# As many bytes of it can have come before.
_TEXT_BYTES = 17
_USAGE = b'"usage"'
_LF = 0x0A


class UsageStripper:
    """The `AnswerEditor` that strips the usage event."""

    __slots__ = ("_held", "_lf_is_stripped", "_released", "stripped")

    follows_meter = False

    def __init__(self) -> None:
        self._held = bytearray()  # the unfinished event; after its release, its last bytes
        self._released = False
        self._lf_is_stripped = False  # the stripped event ended with a CR: an LF now belongs to it
        self.stripped = 0
        """stripped events"""

    @property
    def idle(self) -> bool:
        return not self._held and not self._lf_is_stripped

    def pieces(self, payload: bytes) -> tuple[bytes, ...]:
        return (payload,)

    def feed(self, payload: bytes) -> bytes:
        if self.idle and _is_plain(payload):
            return self._without_usage(payload)
        out: list[bytes] = []
        at = 0
        while at < len(payload):
            if self._lf_is_stripped:
                self._lf_is_stripped = False
                at += payload.startswith(b"\n", at)
            elif self._held:
                at += self._extend(payload[at:], out)
            elif payload[at] in b"\r\n":
                out.append(payload[at : at + 1])
                at += 1
            elif (end := _END.search(payload, at)) is not None:
                self._decide(payload[at : end.end()], end.start() - at, out)
                at = end.end()
            else:
                at += self._extend(payload[at:], out)
        return out[0] if len(out) == 1 else b"".join(out)

    def _without_usage(self, payload: bytes) -> bytes:
        """`payload`, which has whole events only, without usage events."""
        if _USAGE not in payload:
            return payload
        events = payload.split(b"\n\n")
        kept = [
            one
            for one in events
            if _USAGE not in one or _DELTA in one or len(one) > HOLD_BYTES_MAX or not self._taken(one)
        ]
        return payload if len(kept) == len(events) else b"\n\n".join(kept)

    def close(self) -> bytes:
        held = b"" if self._released else bytes(self._held)
        if not held:
            return held
        self._held.clear()
        return b"" if self._taken(held) else held

    def _extend(self, more: bytes, out: list[bytes]) -> int:
        """Add to the unfinished event. Returns how many bytes of `more` belong to it."""
        held, before = self._held, len(self._held)
        held += more
        end = _END.search(held, max(before - _LOOK_BACK, 0))
        size = len(more) if end is None else end.end() - before
        if self._released:
            out.append(more[:size])
        elif end is not None:
            self._decide(bytes(held[: end.end()]), end.start(), out)
        elif len(held) > HOLD_BYTES_MAX + _LOOK_BACK or _TEXT.search(held, max(before - _TEXT_BYTES, 0)) is not None:
            out.append(bytes(held))
            self._released = True
        if end is not None:
            self._released = False
            held.clear()
        elif self._released:
            del held[:-_LOOK_BACK]
        return size

    def _decide(self, event: bytes, text_bytes: int, out: list[bytes]) -> None:
        """Strip or release a whole event. `text_bytes`: its size before the blank line."""
        if text_bytes <= HOLD_BYTES_MAX and self._taken(event):
            self._lf_is_stripped = event.endswith(b"\r")
        else:
            out.append(event)

    def _taken(self, event: bytes) -> bool:
        if _TEXT.search(event) is not None:
            return False
        parsed = event_of(event.replace(b"\r\n", b"\n").replace(b"\r", b"\n").rstrip(b"\n"))
        taken = parsed is not None and parsed[1] != b"error" and is_usage_event(parsed[0])
        self.stripped += taken
        return taken


def _is_plain(payload: bytes) -> bool:
    """Whether LF LF ends every event, and the last of them the payload."""
    return payload.endswith(b"\n\n") and b"\r" not in payload and b"\n\n\n" not in payload and payload[0] != _LF


class _UsageEvent(msgspec.Struct, gc=False):
    usage: dict[str, Any]
    choices: list[Any] | None = None


_usage_event = msgspec.json.Decoder(_UsageEvent).decode
_members_of = json.JSONDecoder(object_pairs_hook=list, parse_int=float).decode

# Members of a usage event that hold no output: OpenAI's and Azure's; routers'; times and settings of servers.
_NO_OUTPUT = frozenset({
    "choices", "usage", "id", "object", "type", "created", "model", "system_fingerprint", "service_tier", "obfuscation",
    "stream_options", "prompt_filter_results", "copilot_usage", "latency_checkpoint", "x_groq",
    "created_at", "request_id", "provider", "cost", "venice_parameters", "p",
    "time_info", "timings", "stats", "runtime", "model_info", "metadata", "perf_metrics", "nvext",
    "kv_transfer_params", "prompt_token_ids",
})  # fmt: skip


def is_usage_event(event_data: bytes) -> bool:
    """True for a JSON object with an object `usage`, no choice that says something, and no other output.

    `choices` may be absent or null. An event with a filled `error`, or another filled member that is not listed, is no
    usage event, nor is one that repeats `usage` or `choices`. With a list of choices, an unlisted number is allowed.
    False for Azure's first event (empty `choices`, no usage) and for `"usage":null`.
    """
    try:
        if _USAGE not in event_data or any(map(_says_something, _usage_event(event_data).choices or ())):
            return False
        members: list[tuple[str, Any]] = _members_of(event_data.decode("utf-8", "replace"))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    names = [name for name, _ in members]
    if names.count("usage") != 1 or names.count("choices") > 1:
        return False
    # `choices: []` is the documented form; what it has besides is output only if it is a text, a list or an object.
    harmless = () if dict(members).get("choices") is None else (int, float)
    filled = [value for name, value in members if value and name not in _NO_OUTPUT]
    return not filled or all(isinstance(value, harmless) for value in filled)


def _says_something(choice: object) -> bool:
    if not isinstance(choice, dict):
        return True
    members = (value for name, value in choice.items() if name != "index")
    return any(any(value.values()) if isinstance(value, dict) else value for value in members)
