"""A reference reader of server-sent events for tests: whole bytes in, events out.

Law: simple enough to be believed, and nothing shared with the product: it must be able to disagree with it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_LINE = re.compile(rb"([^\r\n]*)(\r\n|\n|\r|\Z)")


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its exact bytes with the blank line that ends it, and its `data` lines joined."""

    wire: bytes
    payload: str | None
    """None for an event without `data` lines, such as a comment"""

    @property
    def done(self) -> bool:
        """True for the `[DONE]` that ends a stream."""
        return self.payload == "[DONE]"

    @property
    def json(self) -> Any:
        """The payload as JSON, or None where it is not."""
        try:
            return json.loads(self.payload or "")
        except ValueError:
            return None


def events(body: bytes) -> list[Event]:
    """All whole events of `body`; what follows the last blank line is not one."""
    found: list[Event] = []
    start = 0
    payloads: list[str] = []
    for line in _LINE.finditer(body):
        text, end = line.groups()
        if text.startswith(b"data"):
            _, _, value = text.partition(b":")
            payloads.append(value.removeprefix(b" ").decode("utf-8", "replace"))
        if not text and end:
            found.append(Event(body[start : line.end()], "\n".join(payloads) if payloads else None))
            start, payloads = line.end(), []
    return found


def data_events(body: bytes) -> list[Event]:
    """The events with data, `[DONE]` included."""
    return [event for event in events(body) if event.payload is not None]


def chunks(body: bytes) -> list[dict[str, Any]]:
    """The JSON objects of a stream, in order."""
    return [event.json for event in data_events(body) if isinstance(event.json, dict)]


def done(body: bytes) -> bool:
    return any(event.done for event in events(body))


def usage(body: bytes) -> dict[str, Any] | None:
    """The last usage object the stream reported, as sent."""
    reported = [chunk["usage"] for chunk in chunks(body) if chunk.get("usage")]
    return reported[-1] if reported else None


def text(body: bytes, *, field: str = "content", cumulative: bool = False) -> str:
    """What choice 0 said in `field` of its deltas, joined; or the longest, where each repeats the rest."""
    said = [choice["delta"].get(field) or "" for choice in _choices(body) if choice.get("index", 0) == 0]
    return max(said, key=len, default="") if cumulative else "".join(said)


def tool_arguments(body: bytes) -> str:
    """The argument fragments of all tool calls of choice 0, joined."""
    calls = (call for choice in _choices(body) for call in choice["delta"].get("tool_calls") or ())
    return "".join(call["function"].get("arguments") or "" for call in calls)


def finish_reason(body: bytes) -> str | None:
    """The last reason given, or None."""
    reasons = [choice["finish_reason"] for choice in _choices(body) if choice.get("finish_reason")]
    return reasons[-1] if reasons else None


def is_usage_event(event: Event) -> bool:
    """True for the extra event that `include_usage` adds: a usage, and no choice but LiteLLM's without content."""
    chunk = event.json
    if not isinstance(chunk, dict) or not isinstance(chunk.get("usage"), dict):
        return False
    return all(one.get("delta") == {} and not one.get("finish_reason") for one in chunk.get("choices") or ())


def without_usage_event(body: bytes) -> bytes:
    """What a client that did not ask for usage must get: `body` without its usage events, to the byte."""
    parts = events(body)
    rest = body[sum(len(event.wire) for event in parts) :]
    return b"".join(event.wire for event in parts if not is_usage_event(event)) + rest


def _choices(body: bytes) -> list[dict[str, Any]]:
    return [choice for chunk in chunks(body) for choice in chunk.get("choices") or ()]
