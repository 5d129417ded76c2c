"""Answers of the scripted provider at Bedrock's paths, and the encoding of its binary streams. Pure.

The shapes follow AWS's references: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ConverseStream.html,
https://smithy.io/2.0/aws/amazon-eventstream.html. No code is shared with the meters.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from zlib import crc32

from proxy.conformance.answers import PROMPT_TOKENS, TEXT, Names, Piece, Reported, Scripted, messages, of_json
from proxy.demo.script import Pairs
from proxy.demo.shapes import Json, json_bytes

_BINARY: Pairs = (("Content-Type", "application/vnd.amazon.eventstream"),)
_USAGE: Json = {
    "inputTokens": PROMPT_TOKENS, "outputTokens": len(TEXT), "totalTokens": PROMPT_TOKENS + len(TEXT),
}  # fmt: skip
# Two lengths and their checksum before a message's headers, and a checksum after its payload.
_PRELUDE = struct.Struct(">III")
_CRC_BYTES = 4
_TEXT_KIND = 7


def converse(names: Names, usage: Json | None = None) -> Scripted:
    """A stream of Converse. `usage`: its counts of the prompt, with the sum PROMPT_TOKENS."""
    deltas = ({"delta": {"text": token}, "contentBlockIndex": 0} for token in TEXT)
    events: list[tuple[str, Json, int]] = [
        ("messageStart", {"role": "assistant"}, 0),
        *(("contentBlockDelta", delta, 1) for delta in deltas),
        ("contentBlockStop", {"contentBlockIndex": 0}, 0),
        ("messageStop", {"stopReason": "end_turn"}, 0),
        ("metadata", {"usage": _USAGE | (usage or {}), "metrics": {"latencyMs": 900}}, 0),
    ]
    pieces = (Piece(_event(kind, {**event, "p": names.response_id}), tokens) for kind, event, tokens in events)
    return Scripted(tuple(pieces), Reported(PROMPT_TOKENS, len(TEXT)), headers=_BINARY)


def converse_json(_: Names) -> Scripted:
    """An answer of Converse that is not streamed."""
    content = [{"text": "".join(TEXT)}]
    document = {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": "end_turn",
        "usage": _USAGE,
        "metrics": {"latencyMs": 900},
    }
    return of_json(document, Reported(PROMPT_TOKENS, len(TEXT)))


def invoked(names: Names) -> Scripted:
    """A stream of an Anthropic message by InvokeModel; the last event also has Bedrock's counts."""
    plain = messages(names)
    metrics = {"inputTokenCount": PROMPT_TOKENS, "outputTokenCount": len(TEXT), "invocationLatency": 900}
    pieces = []
    for piece in plain.pieces:
        event = piece.body.partition(b"data: ")[2].strip()
        if piece is plain.pieces[-1]:
            event = event[:-1] + b"," + json_bytes({"amazon-bedrock-invocationMetrics": metrics})[1:]
        chunk = {"bytes": base64.b64encode(event).decode(), "p": "abcdefgh"}
        pieces.append(piece._replace(body=_event("chunk", chunk)))
    return Scripted(tuple(pieces), plain.usage, headers=_BINARY)


def _event(kind: str, document: Json) -> bytes:
    """One complete message of an AWS event stream."""
    named = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    headers = b"".join(_header(name.encode(), value.encode()) for name, value in named.items())
    payload = json_bytes(document)
    lengths = struct.pack(">II", _PRELUDE.size + len(headers) + len(payload) + _CRC_BYTES, len(headers))
    before = lengths + struct.pack(">I", crc32(lengths)) + headers + payload
    return before + struct.pack(">I", crc32(before))


def _header(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + bytes([_TEXT_KIND]) + struct.pack(">H", len(value)) + value


def payloads(body: bytes) -> Iterator[bytes]:
    """The payloads of an AWS event stream, until its end or its first invalid message."""
    while len(body) >= _PRELUDE.size:
        size, headers, checksum = _PRELUDE.unpack_from(body)
        if crc32(body[:8]) != checksum or len(body) < size:
            return
        yield body[_PRELUDE.size + headers : size - _CRC_BYTES]
        body = body[size:]
