"""The arguments of a tool call are generated text, also where the server has parsed them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from proxy.metering.dialects.bedrock.invoke import BEDROCK_INVOKE
from proxy.metering.dialects.cohere.chat import COHERE_CHAT
from proxy.metering.dialects.gemini_interactions.interactions import GEMINI_INTERACTIONS
from proxy.metering.dialects.ollama.chat import OLLAMA_CHAT
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.dialects.openai_realtime.session import RealtimeWire
from proxy.metering.dialects.openai_responses.responses import OPENAI_RESPONSES
from proxy.metering.meter import StreamMeter
from proxy.metering.socket import ExchangeKind
from proxy.metering.wire.framing import MessageFramer
from tests.metering.fixtures import fed, read_answer

NAME, TEXT, PARSED = "gauge", '{"at":"Ulm"}', {"at": "Ulm"}


def call(arguments: Any) -> dict[str, Any]:
    """A call as most APIs send it."""
    return {"id": "1", "function": {"name": NAME, "arguments": arguments}}


def item(arguments: Any) -> dict[str, Any]:
    """An item of the output."""
    return {"type": "function_call", "name": NAME, "arguments": arguments}


@pytest.mark.parametrize("arguments", [TEXT, PARSED])
@pytest.mark.parametrize(
    ("dialect", "answer"),
    [
        (OPENAI_CHAT, lambda it: {"choices": [{"message": {"tool_calls": [call(it)]}}]}),
        (BEDROCK_INVOKE, lambda it: {"choices": [{"message": {"tool_calls": [call(it)]}}]}),
        (COHERE_CHAT, lambda it: {"id": "c", "message": {"tool_calls": [call(it)]}}),
        (OPENAI_RESPONSES, lambda it: {"status": "completed", "output": [item(it)]}),
        (GEMINI_INTERACTIONS, lambda it: {"id": "i", "status": "completed", "steps": [item(it)]}),
    ],
    ids=["chat", "invoke", "cohere", "responses", "interactions"],
)
def test_of_an_answer(dialect: Any, answer: Any, arguments: Any) -> None:
    evidence = read_answer(dialect, answer(arguments)).evidence
    assert (evidence.tool_calls, evidence.tool_chars) == (1, len(NAME + TEXT))


def test_of_ollama() -> None:
    answer = {"message": {"tool_calls": [call(PARSED)]}, "done": True}
    assert read_answer(OLLAMA_CHAT, answer).evidence.tool_chars == len(NAME + TEXT)


@pytest.mark.parametrize("arguments", [TEXT, PARSED])
def test_of_a_session(arguments: Any) -> None:
    done = msgspec.json.encode({"type": "response.output_item.done", "response_id": "r", "item": item(arguments)})
    evidence = fed(StreamMeter(RealtimeWire().tally(ExchangeKind.ANSWER), MessageFramer()), [done], fold=True).evidence
    assert (evidence.tool_calls, evidence.tool_chars) == (1, len(NAME + TEXT))
