"""The shapes of Realtime's events on the wire. The names of the beta, which other providers use, are read as well as
today's. https://developers.openai.com/api/reference/resources/realtime/server-events"""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.metering.wire.json_reader import reader


class Part(msgspec.Struct, gc=False):
    """A part of an item: text, or audio with its transcript."""

    text: str | None = None
    transcript: str | None = None


class Item(msgspec.Struct, gc=False):
    """An item of the conversation: a message or a call of a function."""

    type: str | None = None
    name: str | None = None
    arguments: Any = None
    content: list[Part] | None = None


class StatusDetails(msgspec.Struct, gc=False):
    """The reason for the end of a response."""

    reason: str | None = None
    error: Any = None


class Response(msgspec.Struct, gc=False):
    """A response, at its beginning or its end."""

    id: str | None = None
    status: str | None = None
    status_details: StatusDetails | None = None
    output: list[Item] | None = None
    usage: dict[str, Any] | None = None
    conversation_id: str | msgspec.UnsetType | None = msgspec.UNSET
    """None: the response is outside the conversation"""


class Failure(msgspec.Struct, gc=False):
    """The error of an event `error`."""

    type: str | None = None
    code: str | None = None
    param: str | None = None
    event_id: str | None = None
    """id of the client's message that the error is about"""


class RealtimeEvent(msgspec.Struct, gc=False):
    """One event of the provider."""

    type: str | None = None
    response_id: str | None = None
    response: Response | None = None
    item_id: str | None = None
    content_index: int | None = None
    output_index: int | None = None
    delta: Any = None
    item: Item | None = None
    transcript: str | None = None
    text: str | None = None
    usage: dict[str, Any] | None = None
    session: dict[str, Any] | None = None
    error: Failure | None = None
    audio_start_ms: int | None = None
    audio_end_ms: int | None = None


event_of = reader(RealtimeEvent)
