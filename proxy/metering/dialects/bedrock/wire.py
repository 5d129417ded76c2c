"""The shapes of Converse on the wire: one event of a stream, or one whole answer."""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.metering.wire.json_reader import reader


class ToolUse(msgspec.Struct, gc=False):
    """A tool call: whole, its beginning, or a fragment of its input."""

    id: str | None = msgspec.field(default=None, name="toolUseId")
    name: str | None = None
    type: str | None = None
    """`server_tool_use`: the provider runs it"""
    input: Any = None


class Reasoning(msgspec.Struct, gc=False):
    """Reasoning, or a fragment of it."""

    text: str | None = None
    whole: Reasoning | None = msgspec.field(default=None, name="reasoningText")


class Block(msgspec.Struct, gc=False):
    """A block of an answer, its beginning, or a fragment of it: one of these fields is set."""

    text: str | None = None
    tool_use: ToolUse | None = msgspec.field(default=None, name="toolUse")
    reasoning: Reasoning | None = msgspec.field(default=None, name="reasoningContent")
    cited: Message | None = msgspec.field(default=None, name="citationsContent")
    image: Any = None


class Message(msgspec.Struct, gc=False):
    """An answer's message, or a text with its sources."""

    content: list[Block] | None = None


class Terms(msgspec.Struct, gc=False):
    """Terms of service: the tier that served has a type, the performance configuration a latency."""

    type: str | None = None
    latency: str | None = None


class Output(msgspec.Struct, gc=False):
    """The holder of an answer's message."""

    message: Message | None = None


class Converse(msgspec.Struct, gc=False):
    """One event of a stream, whose type is its name, or one whole answer."""

    index: int | None = msgspec.field(default=None, name="contentBlockIndex")
    start: Block | None = None
    delta: Block | None = None
    output: Output | None = None
    stop_reason: str | None = msgspec.field(default=None, name="stopReason")
    usage: dict[str, Any] | None = None
    tier: Terms | None = msgspec.field(default=None, name="serviceTier")
    performance: Terms | None = msgspec.field(default=None, name="performanceConfig")
    trace: Any = None


converse_of = reader(Converse)
