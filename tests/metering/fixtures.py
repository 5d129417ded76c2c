"""Small streams, one for each oddity of a provider, named after it. Texts are our own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from proxy.billing.reread import read_again
from proxy.metering.dialect import NO_HEADERS, Dialect
from proxy.metering.estimator.estimate import Estimator, reading
from proxy.metering.metered import BodyMeter, Metered
from proxy.metering.request import InvalidField
from proxy.metering.usage import Reading, Usage


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
    yield from (in_pieces(body, size) for size in (1, 2, 3, 7, 61, 1000))


def fed(meter: BodyMeter, pieces: Iterable[bytes], *, fold: bool = False) -> Metered:
    """What a meter reads of these pieces. `fold`: of each piece by itself."""
    for piece in pieces:
        meter.feed(piece)
        if fold:
            meter.fold()
    return meter.close()


def in_pieces(body: bytes, size: int) -> list[bytes]:
    """A body cut into pieces of one size."""
    return [body[at : at + size] for at in range(0, len(body), size)]


def cut_at(body: bytes, places: Iterable[int]) -> list[bytes]:
    """A body cut at these places, or at their remainders where it is shorter."""
    return [body[a:b] for a, b in pairwise([0, *sorted(place % (len(body) + 1) for place in places), len(body)])]


def read_answer(
    dialect: Dialect, answer: Any, headers: Mapping[str, str] = NO_HEADERS, *, size: int = 1 << 20
) -> Metered:
    """What a meter reads of a whole answer: of its bytes, or of a document."""
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    return fed(dialect.plain_meter(headers), in_pieces(body, size))


def read_events(dialect: Dialect, *events: dict[str, Any] | bytes, name: str = "") -> Metered:
    """What a meter reads of a stream: of documents, in the dialect's first framing, each named so, or of bytes."""
    framing = dialect.framings[0]
    wire = (one if isinstance(one, bytes) else framing.event(json.dumps(one).encode(), name) for one in events)
    return fed(dialect.stream_meter(framing), wire)


def read_stream(dialect: Dialect, body: bytes, *arguments: Any, **options: Any) -> Metered:
    """What a meter, made with these arguments, reads of a stream: the same at every cut, or the test fails."""
    results = [fed(dialect.stream_meter(*arguments, **options), pieces) for pieces in cuts(body)]
    assert all(result == results[0] for result in results)
    return results[0]


def reading_of(metered: Metered, **more: Any) -> Reading:
    """The reading of an exchange of a model of which nothing is known."""
    usual: dict[str, Any] = {
        "estimator": Estimator(), "model_key": "p/m", "prompt_tokens_estimate": 7, "completion_tokens_max": None,
        "bytes_seen": 9999,
    }  # fmt: skip
    return reading(metered, **(usual | more))


def read_again_of(dialect: Dialect, metered: Metered) -> Usage:
    """The usage of an entry that holds the raw usage of this answer, as `rerate` reads it."""
    details = {"usage": metered.usage_raw}
    entry: Any = SimpleNamespace(endpoint=dialect.endpoint, usage_source="reported", details=details)
    again = read_again(entry)
    assert again is not None
    return again.usage.filled_from(Usage())


def wrong_field(read: Callable[..., object], *request: Any) -> str | None:
    """The field that a refused request is refused for."""
    with pytest.raises(InvalidField) as refusal:
        read(*request)
    return refusal.value.param
