"""A client's message as an event: read as strictly as the body of a request."""

from __future__ import annotations

from typing import Any

from proxy.http.field_names import refuse_ambiguous_names
from proxy.http.json_body import parse_object
from proxy.http.websocket import TEXT, Message


def document_of(message: Message) -> dict[str, Any] | None:
    """The event; None: it is none, but audio, say. Raises ApiError for what two parsers could read in two ways."""
    payload = message.payload
    if message.kind is not TEXT and not payload.lstrip(b" \t\r\n\xef\xbb\xbf").startswith(b"{"):
        return None
    document = parse_object(payload)
    refuse_ambiguous_names(document)
    return document
