"""Parses a client's message as an event, as strictly as the body of a request."""

from __future__ import annotations

from typing import Any

from proxy.http.field_names import refuse_ambiguous_names
from proxy.http.json_body import parse_object
from proxy.http.websocket import TEXT, Message


def document_of(message: Message) -> dict[str, Any] | None:
    """The event; None: the message is no event, but for example audio. Raises ApiError if it is ambiguous."""
    payload = message.payload
    if message.kind is not TEXT and not payload.lstrip(b" \t\r\n\xef\xbb\xbf").startswith(b"{"):
        return None
    document = parse_object(payload)
    refuse_ambiguous_names(document)
    return document
