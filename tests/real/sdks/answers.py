"""What the scripted provider answers in each scenario, and the truth of it: text, arguments, usage, reason to stop.

Invariant: a scenario's model is `<program>/<scenario>`, so that what a program reported, what the provider saw and
what the ledger holds are found by that name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from proxy.demo.script import Fin, Script, Send, Shape, Wait, json_script
from proxy.demo.shapes import arguments, words

# An answer that a client leaves: it takes seconds, what is read of it a tenth of one.
PACE_MS = 15
LONG = 400

PIECES = words(24)
TEXT = "".join(PIECES)
ARGUMENTS = {"by_cm": 40}
FRAGMENTS = ('{"by_', 'cm": 4', "0}")
CALLED = "open_gate"
VECTOR = [0.5, -0.25, 0.125]


@dataclass(frozen=True)
class Answer:
    """The plan of a scenario, and what a program must report of it."""

    plan: Script | Shape
    text: str = ""
    arguments: dict[str, Any] | None = None
    finish: str | None = None
    """as the SDK shows it"""
    usage: tuple[int, int, int] | None = None
    """prompt tokens (cached ones included), cached ones, completion tokens; None: as the provider logged them"""
    usage_shown: bool = True
    vector: list[float] | None = None


def _sse(events: Iterable[dict[str, Any]], *, pace_ms: float = 0, named: bool = True) -> Script:
    """Events with the names that their types are; each counts as one token."""
    steps: list[Send | Wait] = []
    for event in events:
        name = f"event: {event['type']}\n" if named else ""
        steps += [Send(f"{name}data: {json.dumps(event)}\n\n".encode(), 1), Wait(pace_ms)]
    return Script(steps=tuple(steps))


# -- OpenAI --------------------------------------------------------------------------------------------------------

_RESPONSE = {
    "id": "resp_1", "object": "response", "created_at": 1, "model": "weir", "parallel_tool_calls": True,
    "tool_choice": "auto", "tools": [], "error": None, "incomplete_details": None, "instructions": None,
    "metadata": {}, "temperature": 1.0, "top_p": 1.0, "output": [], "usage": None, "status": "in_progress",
}  # fmt: skip
_RESPONSE_USED = {
    "input_tokens": 31, "input_tokens_details": {"cached_tokens": 8},
    "output_tokens": 24, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 55,
}  # fmt: skip


def _response(*output: dict[str, Any]) -> dict[str, Any]:
    return {**_RESPONSE, "status": "completed", "output": list(output), "usage": _RESPONSE_USED}


def _message(text: str, status: str = "completed") -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}] if text else []
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": status, "content": content}


def response_stream(texts: tuple[str, ...] = PIECES) -> Script:
    """A response of one message, with all events that OpenAI sends."""
    at = {"item_id": "msg_1", "output_index": 0}
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    text = "".join(texts)
    events = [
        {"type": "response.created", "response": _RESPONSE},
        {"type": "response.in_progress", "response": _RESPONSE},
        {"type": "response.output_item.added", "output_index": 0, "item": _message("", "in_progress")},
        {"type": "response.content_part.added", **at, "content_index": 0, "part": part},
        *(
            {"type": "response.output_text.delta", **at, "content_index": 0, "delta": one, "logprobs": []}
            for one in texts
        ),
        {"type": "response.output_text.done", **at, "content_index": 0, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **at, "content_index": 0, "part": {**part, "text": text}},
        {"type": "response.output_item.done", "output_index": 0, "item": _message(text)},
        {"type": "response.completed", "response": _response(_message(text))},
    ]
    return _sse({**event, "sequence_number": number} for number, event in enumerate(events))


def _response_call(status: str, text: str) -> dict[str, Any]:
    return {
        "type": "function_call", "id": "fc_1", "call_id": "call_1", "name": CALLED, "arguments": text, "status": status,
    }  # fmt: skip


def _response_tools() -> Script:
    at, done = {"item_id": "fc_1", "output_index": 0}, "".join(FRAGMENTS)
    events = [
        {"type": "response.created", "response": _RESPONSE},
        {"type": "response.output_item.added", "output_index": 0, "item": _response_call("in_progress", "")},
        *({"type": "response.function_call_arguments.delta", **at, "delta": one} for one in FRAGMENTS),
        {"type": "response.function_call_arguments.done", **at, "name": CALLED, "arguments": done},
        {"type": "response.output_item.done", "output_index": 0, "item": _response_call("completed", done)},
        {"type": "response.completed", "response": _response(_response_call("completed", done))},
    ]
    return _sse({**event, "sequence_number": number} for number, event in enumerate(events))


_TOLD_NOTE = json.loads("".join(arguments(23)))
_CHAT = Shape("openai")
_EMBEDDED = {
    "object": "list", "model": "weir", "data": [{"object": "embedding", "index": 0, "embedding": VECTOR}],
    "usage": {"prompt_tokens": 9, "total_tokens": 9},
}  # fmt: skip

OPENAI = {
    "plain": Answer(_CHAT, TEXT, finish="stop"),
    "stream": Answer(_CHAT, TEXT, finish="stop", usage_shown=False),
    "stream_usage": Answer(_CHAT, TEXT, finish="stop"),
    "tools": Answer(Shape("openai", writes="tools"), arguments=_TOLD_NOTE, finish="tool_calls"),
    "responses": Answer(json_script(_response(_message(TEXT))), TEXT, finish="completed", usage=(31, 8, 24)),
    "responses_stream": Answer(response_stream(), TEXT, finish="completed", usage=(31, 8, 24)),
    "responses_tools": Answer(_response_tools(), arguments=ARGUMENTS, finish="completed", usage=(31, 8, 24)),
    "embeddings": Answer(json_script(_EMBEDDED), usage=(9, 0, 0), vector=VECTOR),
    "leave": Answer(Shape("openai", tokens=LONG, pace_ms=PACE_MS)),
}

# -- Anthropic -----------------------------------------------------------------------------------------------------

_SEED = {"input_tokens": 20, "cache_read_input_tokens": 8, "cache_creation_input_tokens": 3, "output_tokens": 1}


def _anthropic(content: list[dict[str, Any]], reason: str | None, output_tokens: int = 1) -> dict[str, Any]:
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "weir", "content": content,
        "stop_reason": reason, "stop_sequence": None, "usage": {**_SEED, "output_tokens": output_tokens},
    }  # fmt: skip


def message_stream(
    block: dict[str, Any], deltas: Iterable[dict[str, Any]], reason: str, *, pace_ms: float = 0
) -> Script:
    """A message of one block."""
    events = [
        {"type": "message_start", "message": _anthropic([], None)},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "ping"},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": 24},
        },
        {"type": "message_stop"},
    ]
    return _sse(events, pace_ms=pace_ms)


def message_texts(texts: tuple[str, ...] = PIECES, *, pace_ms: float = 0) -> Script:
    deltas = ({"type": "text_delta", "text": text} for text in texts)
    return message_stream({"type": "text", "text": ""}, deltas, "end_turn", pace_ms=pace_ms)


_TOOL_BLOCK = {"type": "tool_use", "id": "toolu_1", "name": CALLED, "input": {}}
_TOOL_DELTAS = [{"type": "input_json_delta", "partial_json": one} for one in ("", *FRAGMENTS)]
_PLAIN = _anthropic([{"type": "text", "text": TEXT}], "end_turn", 24)

ANTHROPIC = {
    "plain": Answer(json_script(_PLAIN), TEXT, finish="end_turn", usage=(31, 8, 24)),
    "stream": Answer(message_texts(), TEXT, finish="end_turn", usage=(31, 8, 24)),
    "tools": Answer(
        message_stream(_TOOL_BLOCK, _TOOL_DELTAS, "tool_use"),
        arguments=ARGUMENTS, finish="tool_use", usage=(31, 8, 24),
    ),
    "leave": Answer(message_texts(words(LONG), pace_ms=PACE_MS)),
}  # fmt: skip
COUNTED = 19
COUNT_TOKENS = json_script({"input_tokens": COUNTED})

# -- Mistral: OpenAI's chat; usage comes unasked in the last chunk, a call of a function in one ---------------------

_MISTRAL_USED = {"prompt_tokens": 31, "completion_tokens": 24, "total_tokens": 55, "num_cached_tokens": 8}
_MISTRAL_CALL = {"id": "call12345", "index": 0, "function": {"name": CALLED, "arguments": "".join(FRAGMENTS)}}


def _mistral_object(kind: str, **choice: Any) -> dict[str, Any]:
    made = {"id": "m-1", "object": kind, "created": 1, "model": "weir"}
    return {**made, "choices": [{"index": 0, "finish_reason": None, **choice}]}


def _mistral(texts: tuple[str, ...], reason: str = "stop", *, pace_ms: float = 0, **last: Any) -> Script:
    deltas = [{"role": "assistant", "content": ""}, *({"content": text} for text in texts)]
    chunks = [_mistral_object("chat.completion.chunk", delta=delta) for delta in deltas]
    end = _mistral_object("chat.completion.chunk", delta={"content": "", **last}, finish_reason=reason)
    chunks.append({**end, "usage": _MISTRAL_USED})
    told = _sse(chunks, pace_ms=pace_ms, named=False)
    return Script(steps=(*told.steps, Send(b"data: [DONE]\n\n")))


_MISTRAL_SAID = {"role": "assistant", "content": TEXT, "tool_calls": None}
_MISTRAL_WHOLE = _mistral_object("chat.completion", message=_MISTRAL_SAID, finish_reason="stop")

MISTRAL = {
    "plain": Answer(json_script({**_MISTRAL_WHOLE, "usage": _MISTRAL_USED}), TEXT, finish="stop", usage=(31, 8, 24)),
    "stream": Answer(_mistral(PIECES), TEXT, finish="stop", usage=(31, 8, 24)),
    "tools": Answer(
        _mistral((), "tool_calls", tool_calls=[_MISTRAL_CALL]),
        arguments=ARGUMENTS, finish="tool_calls", usage=(31, 8, 24),
    ),
    "embeddings": Answer(json_script({"id": "e-1", **_EMBEDDED}), usage=(9, 0, 0), vector=VECTOR),
    "leave": Answer(_mistral(words(LONG), pace_ms=PACE_MS)),
}  # fmt: skip

# -- Cohere ----------------------------------------------------------------------------------------------------------

_COHERE_USED = {
    "billed_units": {"input_tokens": 31, "output_tokens": 24},
    "tokens": {"input_tokens": 31, "output_tokens": 24},
    "cached_tokens": 8,
}


def _cohere(content: list[dict[str, Any]], *deltas: dict[str, Any], reason: str = "COMPLETE") -> list[dict[str, Any]]:
    started = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
    return [
        {"type": "message-start", "id": "r-1", "delta": {"message": started}},
        *content,
        *deltas,
        {"type": "message-end", "delta": {"finish_reason": reason, "usage": _COHERE_USED}},
    ]


def _cohere_texts(texts: tuple[str, ...]) -> list[dict[str, Any]]:
    begins = {"type": "content-start", "index": 0, "delta": {"message": {"content": {"type": "text", "text": ""}}}}
    deltas = [
        {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": text}}}} for text in texts
    ]
    return _cohere([begins], *deltas, {"type": "content-end", "index": 0})


def _cohere_call() -> list[dict[str, Any]]:
    def calls(**call: Any) -> dict[str, Any]:
        return {"message": {"tool_calls": call}}

    begins = calls(id="call_1", type="function", function={"name": CALLED, "arguments": ""})
    deltas = [{"type": "tool-call-delta", "index": 0, "delta": calls(function={"arguments": one})} for one in FRAGMENTS]
    events = [{"type": "tool-call-start", "index": 0, "delta": begins}, *deltas, {"type": "tool-call-end", "index": 0}]
    return _cohere(events, reason="TOOL_CALL")


_COHERE_PLAIN = {
    "id": "r-1", "finish_reason": "COMPLETE", "usage": _COHERE_USED,
    "message": {"role": "assistant", "content": [{"type": "text", "text": TEXT}]},
}  # fmt: skip
_COHERE_EMBEDDED = {
    "id": "e-1", "embeddings": {"float": [VECTOR]}, "texts": ["How much?"], "response_type": "embeddings_by_type",
    "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 9}},
}  # fmt: skip

COHERE = {
    "plain": Answer(json_script(_COHERE_PLAIN), TEXT, finish="COMPLETE", usage=(31, 8, 24)),
    "stream": Answer(_sse(_cohere_texts(PIECES)), TEXT, finish="COMPLETE", usage=(31, 8, 24)),
    "tools": Answer(_sse(_cohere_call()), arguments=ARGUMENTS, finish="TOOL_CALL", usage=(31, 8, 24)),
    "embeddings": Answer(json_script(_COHERE_EMBEDDED), usage=(9, 0, 0), vector=VECTOR),
    "leave": Answer(_sse(_cohere_texts(words(LONG)), pace_ms=PACE_MS)),
}

# -- Ollama: a JSON line for each piece --------------------------------------------------------------------------------

_OLLAMA_USED = {
    "total_duration": 9, "load_duration": 1, "prompt_eval_count": 31, "prompt_eval_duration": 2, "eval_count": 24,
    "eval_duration": 3,
}  # fmt: skip


def _ollama(text: str = "", *, done: bool = False, **message: Any) -> dict[str, Any]:
    ended = {"done_reason": "stop", **_OLLAMA_USED} if done else {}
    said = {"role": "assistant", "content": text, **message}
    return {"model": "weir", "created_at": "2026-11-21T10:00:00Z", "message": said, "done": done, **ended}


def _lines(*documents: dict[str, Any], pace_ms: float = 0) -> Script:
    steps: list[Send | Wait] = []
    for document in documents:
        steps += [Send(json.dumps(document).encode() + b"\n", 1), Wait(pace_ms)]
    return Script(steps=tuple(steps), headers=(("Content-Type", "application/x-ndjson"),))


_OLLAMA_CALL = _ollama(tool_calls=[{"function": {"name": CALLED, "arguments": ARGUMENTS}}])
_OLLAMA_EMBEDDED = {"model": "weir", "embeddings": [VECTOR], "total_duration": 9, "prompt_eval_count": 9}

OLLAMA = {
    "plain": Answer(json_script(_ollama(TEXT, done=True)), TEXT, finish="stop", usage=(31, 0, 24)),
    "stream": Answer(_lines(*map(_ollama, PIECES), _ollama(done=True)), TEXT, finish="stop", usage=(31, 0, 24)),
    "tools": Answer(_lines(_OLLAMA_CALL, _ollama(done=True)), arguments=ARGUMENTS, finish="stop", usage=(31, 0, 24)),
    "embeddings": Answer(json_script(_OLLAMA_EMBEDDED), usage=(9, 0, 0), vector=VECTOR),
    "leave": Answer(_lines(*map(_ollama, words(LONG)), _ollama(done=True), pace_ms=PACE_MS)),
}

ANSWERS = {"openai": OPENAI, "anthropic": ANTHROPIC, "mistral": MISTRAL, "cohere": COHERE, "ollama": OLLAMA}


def broken(language: str) -> Script:
    """A stream that breaks off: the connection is closed before the end of the answer."""
    # OpenAI's answers are made for each request; Mistral's are of the same form.
    whole = ANSWERS["mistral" if language == "openai" else language]["stream"].plan
    assert isinstance(whole, Script)
    return Script(steps=(*whole.steps[:16], Wait(20), Fin()), headers=whole.headers)
