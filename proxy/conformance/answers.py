"""Answers of the scripted provider: exact bytes, with the tokens generated for each piece. Pure.

Invariants: an answer is a value that depends only on its `Names`. A piece has as many tokens as o200k counts in its
text; `usage` is the usage that the answer reports. No code is shared with the meters.

The shapes follow the providers' references: https://platform.openai.com/docs/api-reference,
https://docs.claude.com/en/api/messages-streaming, https://ai.google.dev/api/generate-content.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from proxy.demo.script import AS_SENT, AnyStep, Cut, Pairs, Script, Send, Wait
from proxy.demo.shapes import GeneratedAnswer, Json, Language, Tool, json_bytes, sse, stream, tokens_of, whole

# Each word or sign is one token of o200k, so that the tokens of any beginning of the text are known.
_TEXT = (
    "The mill stands below the bridge, and the water that passes it is measured twice each day. In the morning the "
    "keeper writes the height of the river in a long blue book; in the evening he reads the mark again and adds both "
    "numbers. When the spring is wet, the wheel turns fast and the flour is cheap. When the summer is dry, the farmers "
    "wait, and the price of bread goes up in the town. Nobody likes the book, but everybody believes it, because the "
    "same page is open to all."
)
TEXT = tokens_of(_TEXT)[:99]
THOUGHT, SHOWN_TEXT = TEXT[:60], TEXT[60:]
PROMPT = (
    "You keep the book of a water mill. Read what was written in it this morning, say in your own words what it means "
    "for the miller, for the farmers and for the town, and do not forget the price of bread. Take your time; a short "
    "answer is as good as a long one, as long as every number in it is right."
)
# 73 of o200k, and what a chat of one message adds.
PROMPT_TOKENS = 80
# Each fragment is one token of o200k, and so is the name.
TOOL = Tool(
    "call_1",
    "note",
    ('{"', "place", '":', ' "', "the", " old", " mill", '",', ' "', "day", '":', ' "', "the", " first", " of", " May",
     '",', ' "', "height", '":', " ", "312", ",", ' "', "unit", '":', ' "', "cm", '",', ' "', "note", '":', ' "', "the",
     " water", " rose", " in", " the", " night", " and", " the", " keeper", " closed", " the", " upper", " gate", '"}'),
)  # fmt: skip
# Tokens of a call in addition to its name and arguments: in recorded answers of gpt-4.1-mini with one call 7, 8 and 13.
CALL_TOKENS = 8

PLAIN = Language("conformance", "conformance", cached=True)
IN_LAST_CHUNK = replace(PLAIN, usage_rides=True, finish_apart=False)
CUMULATIVE = replace(PLAIN, cumulative=True)
_CREATED = 1_790_000_000
_EVENT_STREAM = (("Content-Type", "text/event-stream; charset=utf-8"),)
_JSON = (("Content-Type", "application/json"),)


class Piece(NamedTuple):
    """Bytes of a body that are written at once."""

    body: bytes
    tokens: int = 0
    """number of tokens generated for the piece"""
    only_with_usage: bool = False
    """written only if the request asks for usage"""
    pause_ms: float = 0
    """silence before the piece"""


class Names(NamedTuple):
    """The response id and the model name in the answer to one request."""

    response_id: str
    model: str
    """the model name in the request to the provider"""


class Reported(NamedTuple):
    """The usage that an answer reports."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Scripted:
    """One answer."""

    pieces: tuple[Piece, ...]
    usage: Reported | None
    """None: the answer never reports usage"""
    ends: tuple[AnyStep, ...] = ()
    """steps after the pieces, instead of the regular end"""
    headers: Pairs = _EVENT_STREAM
    status: int = 200
    gzip: bool = False
    wire: Cut = AS_SENT
    broken: bool = False
    """the answer ends early: the provider fails"""

    def script(self, *, with_usage: bool) -> Script:
        """The script that the provider plays. `with_usage`: the request asks for usage."""
        steps: list[AnyStep] = []
        for piece in self.written(with_usage=with_usage):
            steps += [Wait(piece.pause_ms)] if piece.pause_ms else []
            steps.append(Send(piece.body, piece.tokens))
        return Script(
            steps=(*steps, *self.ends),
            status=self.status,
            headers=self.headers,
            framing="length" if self.headers == _JSON else "chunked",
            gzip=self.gzip,
            wire=self.wire,
        )

    def written(self, *, with_usage: bool) -> list[Piece]:
        """The pieces of the answer; those with usage only if `with_usage`."""
        return [piece for piece in self.pieces if with_usage or not piece.only_with_usage]

    def body(self, *, with_usage: bool) -> bytes:
        """The bytes that the client has to receive."""
        return b"".join(piece.body for piece in self.written(with_usage=with_usage))

    def reports(self, *, with_usage: bool) -> bool:
        """True if the answer, played to its end, reports its usage."""
        return self.usage is not None and (with_usage or not any(piece.only_with_usage for piece in self.pieces))


# -- ways to change an answer ------------------------------------------------------------------------------------


def paced(answer: Scripted, pause_ms: float) -> Scripted:
    """The answer with silence before each token."""
    slow = (piece._replace(pause_ms=pause_ms) if piece.tokens else piece for piece in answer.pieces)
    return replace(answer, pieces=tuple(slow))


def halting(answer: Scripted, tokens: int, pause_ms: float) -> Scripted:
    """The answer with silence after the first `tokens` tokens, so that a disconnect or a kill has a known place."""
    pieces = list(answer.pieces)
    for at, piece in enumerate(pieces):
        if piece.tokens and sum(one.tokens for one in pieces[:at]) >= tokens:
            pieces[at] = piece._replace(pause_ms=pause_ms)
            return replace(answer, pieces=tuple(pieces))
    raise AssertionError(f"the answer has no more than {tokens} tokens")


def cut(answer: Scripted, tokens: int, *ends: AnyStep, after: Iterable[Piece] = ()) -> Scripted:
    """The first `tokens` tokens of the answer, followed by `after` and `ends`."""
    kept: list[Piece] = []
    for piece in answer.pieces:
        if sum(one.tokens for one in kept) >= tokens:
            break
        kept.append(piece)
    return replace(answer, pieces=(*kept, *after), usage=None, ends=ends, broken=True)


def edited(answer: Scripted, edit: Callable[[Json], Json]) -> Scripted:
    """The answer with each of its JSON documents changed by `edit`."""
    return replace(answer, pieces=tuple(piece._replace(body=_edited(piece.body, edit)) for piece in answer.pieces))


def _edited(body: bytes, edit: Callable[[Json], Json]) -> bytes:
    before, mark, document = (b"", b"", body) if body.startswith(b"{") else body.partition(b"data: ")
    if not document.startswith(b"{"):
        return body
    blank = document[len(document.rstrip()) :]
    return before + mark + json_bytes(edit(json.loads(document))) + blank


def with_hidden(answer: Scripted, tokens: int, *, kind: str | None = None) -> Scripted:
    """The answer with `tokens` more tokens that no text shows. `kind`: the name of their count in a chat's usage."""
    first, *others = answer.pieces

    def report(chunk: Json) -> Json:
        if not chunk.get("usage"):
            return chunk
        usage = dict(chunk["usage"])
        usage["completion_tokens"] += tokens
        usage["total_tokens"] += tokens
        return chunk | {"usage": usage | ({"completion_tokens_details": {kind: tokens}} if kind else {})}

    usage = answer.usage and answer.usage._replace(completion_tokens=answer.usage.completion_tokens + tokens)
    generated = replace(answer, pieces=(first._replace(tokens=first.tokens + tokens), *others), usage=usage)
    return edited(generated, report)


def late(answer: Scripted, pause_ms: float) -> Scripted:
    """The answer with silence before its usage."""
    pieces = (piece._replace(pause_ms=pause_ms) if piece.only_with_usage else piece for piece in answer.pieces)
    return replace(answer, pieces=tuple(pieces))


def with_odd_lines(answer: Scripted) -> Scripted:
    """The answer's events with CRLF, comments, and no blank after the colon; SSE allows all of these."""

    def odd(piece: Piece) -> Piece:
        return piece._replace(
            body=b": still here\r\n" + piece.body.replace(b"data: ", b"data:").replace(b"\n", b"\r\n")
        )

    return replace(answer, pieces=tuple(map(odd, answer.pieces)))


# -- OpenAI: chat, embeddings, responses -------------------------------------------------------------------------


def answer(
    names: Names,
    content: tuple[str, ...] = TEXT,
    *,
    reasoning: tuple[str, ...] = (),
    tool: Tool | None = None,
    cached_tokens: int = 0,
    choices: int = 1,
) -> GeneratedAnswer:
    """A generated answer, before it is encoded in a format."""
    return GeneratedAnswer(
        response_id=names.response_id,
        created=_CREATED,
        model=names.model,
        prompt_tokens=PROMPT_TOKENS,
        content=content,
        reasoning=reasoning,
        tool=tool,
        finish_reason="stop" if tool is None else "tool_calls",
        cached_tokens=cached_tokens,
        choices=choices,
    )


def chat(generated: GeneratedAnswer, language: Language = PLAIN, *, reports: bool = True) -> Scripted:
    """A stream of chat completions, with the usage in a separate event if the request asks for usage."""
    events = stream(language, generated, usage_asked=reports)
    pieces = [Piece(event.wire, event.tokens, b'"choices":[],"usage"' in event.wire) for event in events]
    reported = Reported(generated.prompt_tokens, generated.completion_tokens)
    return Scripted(tuple(pieces), reported if reports or language.usage_rides else None)


def chat_json(generated: GeneratedAnswer) -> Scripted:
    """A chat completion that is not streamed."""
    return of_json(json.loads(whole(PLAIN, generated)), Reported(generated.prompt_tokens, generated.completion_tokens))


def of_json(document: Json, usage: Reported | None, status: int = 200) -> Scripted:
    """One JSON document."""
    tokens = usage.completion_tokens if usage is not None else 0
    return Scripted((Piece(json_bytes(document), tokens),), usage, headers=_JSON, status=status)


def running(generated: GeneratedAnswer) -> Scripted:
    """A stream in which every chunk reports the usage so far, as with vLLM's `continuous_usage_stats`."""
    plain = chat(generated, reports=False)
    so_far = 0
    pieces = []
    for piece in plain.pieces:
        so_far += piece.tokens
        usage = {"prompt_tokens": generated.prompt_tokens, "completion_tokens": so_far}
        usage["total_tokens"] = sum(usage.values())
        pieces.append(piece._replace(body=_edited(piece.body, lambda chunk, usage=usage: chunk | {"usage": usage})))  # type: ignore[misc]
    return Scripted(tuple(pieces), Reported(generated.prompt_tokens, generated.completion_tokens))


def embeddings(names: Names) -> Scripted:
    """One vector."""
    usage = {"prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS}
    vector = {"object": "embedding", "index": 0, "embedding": [0.25, -0.5, 0.125]}
    document = {"object": "list", "model": names.model, "data": [vector], "usage": usage}
    return of_json(document, Reported(PROMPT_TOKENS, 0))


def response(names: Names, *, calls: Iterable[Json] = (), more: Json | None = None) -> Scripted:
    """An answer of the responses API, not streamed. `calls`: calls of tools that the provider ran."""
    document = _response(names, "completed", more or {})
    ran = [{"id": f"call_{number}", "status": "completed", **call} for number, call in enumerate(calls)]
    return of_json(document | {"output": [*ran, *document["output"]]}, Reported(PROMPT_TOKENS, len(TEXT)))


def responses(names: Names, *, ends: str = "completed") -> Scripted:
    """A stream of the responses API. `ends`: `completed` or `incomplete`; both report usage."""
    begun = _response(names, "in_progress", {}) | {"output": [], "usage": None}
    place: Json = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    part: Json = {"type": "output_text", "text": "", "annotations": []}
    item: Json = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    events: list[tuple[Json, int]] = [
        ({"type": "response.created", "response": begun}, 0),
        ({"type": "response.output_item.added", "output_index": 0, "item": item}, 0),
        ({"type": "response.content_part.added", **place, "part": part}, 0),
        *(({"type": "response.output_text.delta", **place, "delta": token, "logprobs": []}, 1) for token in TEXT),
        ({"type": "response.output_text.done", **place, "text": "".join(TEXT), "logprobs": []}, 0),
        ({"type": f"response.{ends}", "response": _response(names, ends, {})}, 0),
    ]
    numbered = (({**event, "sequence_number": number}, tokens) for number, (event, tokens) in enumerate(events))
    return Scripted(tuple(_named_event(*one) for one in numbered), Reported(PROMPT_TOKENS, len(TEXT)))


def _named_event(event: Json, tokens: int) -> Piece:
    return Piece(b"event: " + event["type"].encode() + b"\n" + sse(event), tokens)


def _response(names: Names, status: str, more: Json) -> Json:
    content = [{"type": "output_text", "text": "".join(TEXT), "annotations": []}]
    usage = {
        "input_tokens": PROMPT_TOKENS,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": len(TEXT),
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": PROMPT_TOKENS + len(TEXT),
    }
    return {
        "id": names.response_id,
        "object": "response",
        "created_at": _CREATED,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None,
        "metadata": {},
        "model": names.model,
        "output": [{"id": "msg_1", "type": "message", "role": "assistant", "status": status, "content": content}],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": usage,
        **more,
    }


# -- Anthropic's messages ----------------------------------------------------------------------------------------


def message(names: Names) -> Scripted:
    """An Anthropic message that is not streamed."""
    content = [{"type": "text", "text": "".join(TEXT)}]
    document = _message(names, content, "end_turn", {"input_tokens": PROMPT_TOKENS, "output_tokens": len(TEXT)})
    return of_json(document, Reported(PROMPT_TOKENS, len(TEXT)))


def messages(names: Names, usage: Json | None = None) -> Scripted:
    """A stream of an Anthropic message. `usage`: the prompt counts in `message_start`, with the sum PROMPT_TOKENS."""
    prompt: Json = {"input_tokens": PROMPT_TOKENS} if usage is None else usage
    begun = _message(names, [], None, prompt | {"output_tokens": 1})
    events: list[tuple[Json, int]] = [
        ({"type": "message_start", "message": begun}, 0),
        ({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}, 0),
        ({"type": "ping"}, 0),
        *(
            ({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": token}}, 1)
            for token in TEXT
        ),
        ({"type": "content_block_stop", "index": 0}, 0),
        (
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn", "stop_sequence": None},
                "usage": {"output_tokens": len(TEXT)},
            },
            0,
        ),
        ({"type": "message_stop"}, 0),
    ]
    return Scripted(tuple(_named_event(*event) for event in events), Reported(PROMPT_TOKENS, len(TEXT)))


def _message(names: Names, content: list[Json], stop_reason: str | None, usage: Json) -> Json:
    return {
        "id": names.response_id,
        "type": "message",
        "role": "assistant",
        "model": names.model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": usage,
    }


# -- Gemini ------------------------------------------------------------------------------------------------------


def generated(names: Names) -> Scripted:
    """An answer of generateContent that is not streamed."""
    document = _generated(names, "".join(TEXT), len(TEXT), 0)
    return of_json(document, Reported(PROMPT_TOKENS, len(TEXT)))


def gemini(names: Names, *, thoughts: int = 0) -> Scripted:
    """A stream of generateContent. `thoughts`: tokens of hidden thinking, billed in addition to those of the answer."""
    events = [_generated(names, token, number, thoughts) for number, token in enumerate(TEXT, 1)]
    pieces = [Piece(b"data: " + json_bytes(event) + b"\r\n\r\n", 1) for event in events]
    pieces[0] = pieces[0]._replace(tokens=1 + thoughts)
    return Scripted(tuple(pieces), Reported(PROMPT_TOKENS, len(TEXT) + thoughts))


def _generated(names: Names, text: str, tokens: int, thoughts: int) -> Json:
    usage = {"promptTokenCount": PROMPT_TOKENS, "candidatesTokenCount": tokens}
    usage |= {"thoughtsTokenCount": thoughts} if thoughts else {}
    usage["totalTokenCount"] = sum(usage.values())
    candidate: Json = {"content": {"parts": [{"text": text}], "role": "model"}, "index": 0}
    candidate |= {"finishReason": "STOP"} if tokens == len(TEXT) else {}
    named = {"modelVersion": names.model, "responseId": names.response_id}
    return {"candidates": [candidate], "usageMetadata": usage, **named}
