"""Small streams, one for each oddity of a provider, named after it. Texts are our own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def chunk(
    delta: dict[str, Any] | None = None, *, index: int = 0, finish: str | None = None, **top: Any
) -> dict[str, Any]:
    """An ordinary chunk with one choice."""
    choice = {"index": index, "delta": {} if delta is None else delta, "finish_reason": finish}
    return {"id": "chatcmpl-7", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **top}


def sse(*events: dict[str, Any] | str, end: str = "\n") -> bytes:
    """Events as `data:` lines, each with its blank line."""
    texts = [event if isinstance(event, str) else json.dumps(event, ensure_ascii=False) for event in events]
    return "".join(f"data: {text}{end}{end}" for text in texts).encode()


def usage(prompt: Any = 9, completion: Any = 3, total: Any = 12, **more: Any) -> dict[str, Any]:
    """A usage object."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total, **more}


def say(*texts: str, **top: Any) -> list[dict[str, Any]]:
    """One chunk for each text."""
    return [chunk({"content": text}, **top) for text in texts]


# The same counts in each family.
CHAT_USAGE = {"prompt_tokens": 9, "completion_tokens": 777, "total_tokens": 786}
INPUT_USAGE = {"input_tokens": 9, "output_tokens": 777, "total_tokens": 786}
GEMINI_USAGE = {"promptTokenCount": 9, "candidatesTokenCount": 777, "totalTokenCount": 786}
COHERE_USAGE = {"tokens": {"input_tokens": 9, "output_tokens": 777}}

USAGE_EVENT = {"id": "chatcmpl-7", "object": "chat.completion.chunk", "choices": [], "usage": usage()}
DONE = "[DONE]"


def call(index: int | None, arguments: str, *, name: str | None = None, id: str | None = None) -> dict[str, Any]:  # noqa: A002
    """A delta with a fragment of one tool call."""
    function = {"arguments": arguments} | ({} if name is None else {"name": name})
    fragment = {"function": function} | ({} if index is None else {"index": index}) | ({} if id is None else {"id": id})
    return {"tool_calls": [fragment]}


def cuts(body: bytes) -> Iterator[list[bytes]]:
    """The cuttings that every stream must survive: whole, by event, by byte, and some uneven ones."""
    yield [body]
    yield [part + b"\n\n" for part in body.split(b"\n\n")[:-1]] + [body.rpartition(b"\n\n")[2]]
    yield [body[at : at + 1] for at in range(len(body))]
    for size in (2, 3, 7, 61, 1000):
        yield [body[at : at + size] for at in range(0, len(body), size)]
