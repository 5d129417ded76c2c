"""The shapes of interactions on the wire: one event of a stream, or one whole answer.

Invariants: nothing raises; well-typed fields are kept. Payloads of images and audio are not read.
"""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.metering.wire.json_reader import reader


class Content(msgspec.Struct, gc=False):
    """A part of the model's output."""

    type: str | None = None
    text: str | None = None


class Step(msgspec.Struct, gc=False):
    """One step of an answer, or the start of one: a thought, output, a call or the result of one."""

    type: str | None = None
    name: str | None = None
    arguments: Any = None
    content: list[Content] | None = None
    summary: list[Content] | None = None


class Delta(msgspec.Struct, gc=False):
    """A fragment of a step."""

    type: str | None = None
    text: str | None = None
    content: Content | None = None
    arguments: Any = None


class Interaction(msgspec.Struct, gc=False):
    """A whole answer, or its fields in an event."""

    id: str | None = None
    model: str | None = None
    status: str | None = None
    service_tier: str | None = None
    steps: list[Step] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


class Metadata(msgspec.Struct, gc=False):
    """Metadata that any event may have."""

    usage: dict[str, Any] | None = msgspec.field(default=None, name="total_usage")


class InteractionEvent(msgspec.Struct, gc=False):
    """One event of a stream."""

    type: str | None = msgspec.field(default=None, name="event_type")
    index: int | None = None
    step: Step | None = None
    delta: Delta | None = None
    interaction: Interaction | None = None
    usage: dict[str, Any] | None = None
    metadata: Metadata | None = None
    error: Any = None


event_of = reader(InteractionEvent)
interaction_of = reader(Interaction)
