"""The fields by which the SDKs of OpenAI, Anthropic and Google name end users and tags, and OpenTelemetry's baggage."""

from __future__ import annotations

import json

import pytest
from opentelemetry import baggage
from opentelemetry.baggage.propagation import W3CBaggagePropagator

from proxy.demo.script import Script, Send
from tests.gateway.deployment import Deployment
from tests.metering.dialects.gemini import counts, text
from tests.support.sdks import anthropic, genai, openai

pytestmark = [pytest.mark.io, pytest.mark.process, pytest.mark.thorough]

CHAT = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": []}
MESSAGE = {
    "id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": "end_turn",
    "usage": {"input_tokens": 3, "output_tokens": 1},
}  # fmt: skip
RESPONSE = {"id": "r", "object": "response", "created_at": 1, "model": "m", "output": [], "status": "completed"}


def answering(document: dict[str, object]) -> Script:
    return Script(steps=(Send(json.dumps(document).encode()),), headers=(("Content-Type", "application/json"),))


async def test_fields_of_openais_sdk(deployment: Deployment) -> None:
    chat, responses = deployment.plan("many", answering(CHAT)), deployment.plan("many", answering(RESPONSE))
    headers: dict[str, str] = {}
    W3CBaggagePropagator().inject(headers, baggage.set_baggage("session.id", "a+b/ü"))
    async with openai.AsyncOpenAI(base_url=f"{deployment.url}/v1", api_key=deployment.key) as client:
        await client.chat.completions.create(
            model=chat, messages=[{"role": "user", "content": "x"}], user="alice", metadata={"team": "red"},
            extra_headers=headers,
        )  # fmt: skip
        await client.responses.create(model=responses, input="x", safety_identifier="bob", metadata={"stage": "test"})
    sent = [deployment.tokenweir.dimensions(await deployment.entry(model)) for model in (chat, responses)]
    assert sent == [
        {"session": "a+b/ü", "end_user": "alice", "tag:team": "red"}, {"end_user": "bob", "tag:stage": "test"},
    ]  # fmt: skip


async def test_fields_of_anthropics_sdk(deployment: Deployment) -> None:
    model = deployment.plan("many", answering(MESSAGE))
    async with anthropic.AsyncAnthropic(base_url=deployment.url, api_key=deployment.key) as client:
        await client.messages.create(
            model=model, max_tokens=9, messages=[{"role": "user", "content": "x"}], metadata={"user_id": "alice"}
        )
    assert deployment.tokenweir.dimensions(await deployment.entry(model)) == {"end_user": "alice"}


@pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")  # aiohttp's, of what the SDK does
@pytest.mark.parametrize("vertexai", [False, True])
async def test_fields_of_googles_sdk(deployment: Deployment, vertexai: bool) -> None:
    """Labels are a field on Vertex AI; elsewhere the SDK sends them with the options of HTTP."""
    model = deployment.plan("many", answering(text("High.", finish="STOP", used=counts(9, 5))))
    url: dict[str, object] = {"base_url": deployment.url}
    more: dict[str, object] = {"headers": {"x-gemini-api-privileged-user-id": "alice"}}
    more |= {} if vertexai else {"extra_body": {"labels": {"team": "red"}}}
    config = {"http_options": more} | ({"labels": {"team": "red"}} if vertexai else {})
    async with genai.Client(api_key=deployment.key, vertexai=vertexai, http_options=url).aio as client:  # type: ignore[arg-type]
        name = f"publishers/google/models/{model}" if vertexai else model
        await client.models.generate_content(model=name, contents="x", config=config)  # type: ignore[arg-type]
    entry = await deployment.entry(model)
    assert deployment.tokenweir.dimensions(entry) == {"end_user": "alice", "tag:team": "red"}
