"""The providers' variants of the chat completions format: tokens → the exact bytes of a stream or a whole answer. Pure.

Invariants: everything that could differ between two runs (ids, times, texts) is an argument; the format follows the
providers' documentation and shares no code with the meter that reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, cycle, islice
from types import MappingProxyType
from typing import Any, NamedTuple

Json = dict[str, Any]
_Chunk = tuple[Json, int]

DONE = b"data: [DONE]\n\n"

# A token here is a word with the blank before it, one ideograph or kana, or one punctuation mark: close to real models.
_TOKEN = re.compile(r"\s*(?:[\u3040-\u9fff]|(?:(?![\u3040-\u9fff])\w)+|[^\w\s])|\s+")

TALE = (
    "A weir does not stop the river; it only asks how much of it goes by. Every drop is counted, none is "
    "kept, and the miller downstream pays for what turned his wheel — no more, no less. In the café they "
    "call it “水门”, the water gate, and they say: 河 runs on, the mark on the post stays. "
)
THOUGHTS = "The question is short, so the answer may be short too. First the facts, then one picture, then stop. "


@dataclass(frozen=True, slots=True)
class Language:
    """One provider's variant of the chat completions stream: the differences only."""

    name: str
    owner: str
    role_chunk: bool = True
    """the role comes first, on its own chunk with empty content; otherwise on the first content chunk"""
    role_always: bool = False
    """every delta repeats the role"""
    named_always: bool = True
    """`created` and `model` are on every chunk, not on the first one only"""
    finish_apart: bool = True
    """the finish reason comes on a chunk with an empty delta; otherwise on the last content chunk"""
    usage_rides: bool = False
    """usage is always on the last content chunk; otherwise on its own chunk, if requested"""
    null_usage: bool = False
    """if usage is requested, every other chunk has `"usage":null`"""
    cumulative: bool = False
    """each delta repeats all text so far, and the last chunk also has `full_text`"""
    cached: bool = False
    """usage includes the number of cached prompt tokens"""
    many_choices: bool = True
    """`n` is supported; otherwise there is only choice 0"""
    stops_on_leave: bool = True
    """generation stops when the client disconnects; otherwise it continues to its end, and is billed"""


_SILICONSTORM = Language(
    "siliconstorm",
    "siliconstorm",
    role_chunk=False,
    role_always=True,
    finish_apart=False,
    usage_rides=True,
    many_choices=False,
)
LANGUAGES: Mapping[str, Language] = MappingProxyType(
    {
        language.name: language
        for language in (
            Language("tera", "tera"),
            Language("tensorloop", "tensorloop", named_always=False, stops_on_leave=False),
            _SILICONSTORM,
            replace(_SILICONSTORM, name="siliconstorm-fulltext", cumulative=True),
            Language("electron", "electron", role_chunk=False, finish_apart=False, cached=True),
            Language("openai", "openai", null_usage=True, cached=True),
        )
    }
)


@dataclass(frozen=True, slots=True)
class Tool:
    """A call of one function; the fragments concatenate to its arguments, one JSON value unless truncated."""

    call_id: str
    name: str
    fragments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GeneratedAnswer:
    """A generated answer and its metadata.

    Each string of `reasoning`, `content` and a tool's `fragments` is one token; a tool's name is one more.
    """

    response_id: str
    created: int
    """Unix seconds, UTC"""
    model: str
    prompt_tokens: int
    content: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    tool: Tool | None = None
    finish_reason: str = "stop"
    cached_tokens: int = 0
    choices: int = 1
    """number of copies of the answer (`n`)"""

    @property
    def completion_tokens(self) -> int:
        """Tokens generated, over all choices, reasoning included."""
        tool_tokens = 1 + len(self.tool.fragments) if self.tool else 0
        return self.choices * (len(self.content) + len(self.reasoning) + tool_tokens)


class WireEvent(NamedTuple):
    """The bytes of one event of a stream, and the number of tokens generated for it."""

    wire: bytes
    tokens: int


def tokens_of(text: str) -> tuple[str, ...]:
    """Split `text` into tokens that concatenate to it."""
    return tuple(_TOKEN.findall(text))


def words(count: int, text: str = TALE) -> tuple[str, ...]:
    """The first `count` tokens of `text`, repeated as needed."""
    return tuple(islice(cycle(tokens_of(text)), count))


def arguments(count: int) -> tuple[str, ...]:
    """`count` fragments (at least 2) that concatenate to one JSON object: {"note": "…"}."""
    plain = (token for token in words(4 * count) if token.isascii() and '"' not in token)
    return ('{"note": "', *islice(plain, max(0, count - 2)), '"}')


def sse(payload: Json) -> bytes:
    """One event: one `data:` line of compact JSON in UTF-8, and a blank line."""
    return b"data: " + json_bytes(payload) + b"\n\n"


def json_bytes(payload: Json) -> bytes:
    """Compact JSON, not ASCII-escaped, so that writes can be cut inside a character."""
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()


def error_object(message: str, kind: str = "invalid_request_error", *, param: str | None = None) -> Json:
    """An error in the format of OpenAI-compatible providers."""
    return {"error": {"message": message, "type": kind, "param": param, "code": None}}


def usage_object(language: Language, answer: GeneratedAnswer) -> Json:
    """The usage in the format of `language`."""
    usage: Json = {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }
    if language.cached:
        usage["prompt_tokens_details"] = {"cached_tokens": answer.cached_tokens}
    if answer.reasoning:
        reasoning_tokens = answer.choices * len(answer.reasoning)
        usage["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
    return usage


def stream(language: Language, answer: GeneratedAnswer, *, usage_asked: bool) -> list[WireEvent]:
    """All events of the streamed answer, `[DONE]` included. Their tokens add up to `answer.completion_tokens`."""
    usage = usage_object(language, answer) if usage_asked or language.usage_rides else None
    chunks: list[_Chunk] = [
        ({"choices": [{"index": index, "delta": delta, "finish_reason": None}]}, tokens)
        for delta, tokens in _deltas(language, answer)
        for index in range(answer.choices)
    ]
    chunks += _finish_chunks(language, answer, chunks)
    if usage is not None and language.usage_rides:
        last, tokens = chunks[-1]
        full_text = {"full_text": "".join(answer.content)} if language.cumulative else {}
        chunks[-1] = ({**full_text, "usage": usage, **last}, tokens)
    elif usage is not None:
        if language.null_usage:
            chunks = [({**chunk, "usage": None}, tokens) for chunk, tokens in chunks]
        chunks.append(({"choices": [], "usage": usage}, 0))
    return [*_named(language, answer, chunks), WireEvent(DONE, 0)]


def whole(language: Language, answer: GeneratedAnswer) -> bytes:
    """The answer as one `chat.completion` object, not streamed."""
    message: Json = {"role": "assistant", "content": "".join(answer.content)}
    if answer.reasoning:
        message["reasoning_content"] = "".join(answer.reasoning)
    if answer.tool:
        function = {"name": answer.tool.name, "arguments": "".join(answer.tool.fragments)}
        message["tool_calls"] = [{"id": answer.tool.call_id, "type": "function", "function": function}]
    choices = [
        {"index": index, "message": message, "finish_reason": answer.finish_reason} for index in range(answer.choices)
    ]
    named = _head(answer, "chat.completion") | {"created": answer.created, "model": answer.model}
    return json_bytes({**named, "choices": choices, "usage": usage_object(language, answer)})


def _head(answer: GeneratedAnswer, object_name: str) -> Json:
    return {"id": answer.response_id, "object": object_name}


def _deltas(language: Language, answer: GeneratedAnswer) -> Iterator[_Chunk]:
    """Each delta and its tokens, for one choice."""
    if language.role_chunk:
        yield {"role": "assistant", "content": ""}, 0
    bare = chain(
        (({"reasoning_content": token}, 1) for token in answer.reasoning),
        (({"content": text}, 1) for text in _contents(language, answer)),
        ((delta, 1) for delta in _tool_deltas(answer.tool)),
    )
    for position, (delta, tokens) in enumerate(bare):
        role_here = language.role_always or (position == 0 and not language.role_chunk)
        yield ({"role": "assistant", **delta} if role_here else delta), tokens


def _contents(language: Language, answer: GeneratedAnswer) -> Iterator[str]:
    so_far = ""
    for token in answer.content:
        so_far += token
        yield so_far if language.cumulative else token


def _tool_deltas(tool: Tool | None) -> Iterator[Json]:
    if tool is None:
        return
    function: Json = {"name": tool.name, "arguments": ""}
    yield {"tool_calls": [{"index": 0, "id": tool.call_id, "type": "function", "function": function}]}
    for fragment in tool.fragments:
        yield {"tool_calls": [{"index": 0, "function": {"arguments": fragment}}]}


def _finish_chunks(language: Language, answer: GeneratedAnswer, chunks: list[_Chunk]) -> list[_Chunk]:
    """The extra chunks with the finish reason; none if the last content chunks have it."""
    if language.finish_apart or not chunks:
        return [
            ({"choices": [{"index": i, "delta": {}, "finish_reason": answer.finish_reason}]}, 0)
            for i in range(answer.choices)
        ]
    for chunk, _ in chunks[-answer.choices :]:
        chunk["choices"][0]["finish_reason"] = answer.finish_reason
    return []


def _named(language: Language, answer: GeneratedAnswer, chunks: list[_Chunk]) -> Iterator[WireEvent]:
    short = _head(answer, "chat.completion.chunk")
    full = short | {"created": answer.created, "model": answer.model}
    for position, (chunk, tokens) in enumerate(chunks):
        names = full if language.named_always or position == 0 else short
        yield WireEvent(sse({**names, **chunk}), tokens)
