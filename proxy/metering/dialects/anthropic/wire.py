"""The shapes of Anthropic's messages on the wire: one event of a stream, or one whole answer."""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.metering.wire.json_reader import reader


class Block(msgspec.Struct, gc=False):
    """A content block: whole in an answer, its beginning in a stream."""

    type: str | None = None
    id: str | None = None
    name: str | None = None
    text: str | None = None
    thinking: str | None = None
    input: Any = None


class Delta(msgspec.Struct, gc=False):
    """A fragment of a block, or the end of a message."""

    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    content: Any = None
    """a compaction's text"""
    stop_reason: str | None = None


class Message(msgspec.Struct, gc=False):
    """An answer; at the start of a stream only the id and the usage of the input."""

    type: str | None = None
    id: str | None = None
    content: list[Block] | None = None
    stop_reason: str | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


class MessagesEvent(msgspec.Struct, gc=False):
    """One event of a stream."""

    type: str | None = None
    index: int | None = None
    message: Message | None = None
    content_block: Block | None = None
    delta: Delta | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


event_of = reader(MessagesEvent)
message_of = reader(Message)
