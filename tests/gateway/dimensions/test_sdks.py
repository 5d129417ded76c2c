"""The fields by which the SDKs of OpenAI and Anthropic name end users and tags."""

from __future__ import annotations

import json

import pytest

from proxy.demo.script import Script, Send
from tests.gateway.deployment import Deployment
from tests.support.sdks import anthropic, openai

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
    headers = {"baggage": "session.id=s7"}
    async with openai.AsyncOpenAI(base_url=f"{deployment.url}/v1", api_key=deployment.key) as client:
        await client.chat.completions.create(
            model=chat, messages=[{"role": "user", "content": "x"}], user="alice", metadata={"team": "red"},
            extra_headers=headers,
        )  # fmt: skip
        await client.responses.create(model=responses, input="x", safety_identifier="bob", metadata={"stage": "test"})
    sent = [deployment.tokenweir.dimensions(await deployment.entry(model)) for model in (chat, responses)]
    assert sent == [
        {"session": "s7", "end_user": "alice", "tag:team": "red"}, {"end_user": "bob", "tag:stage": "test"},
    ]  # fmt: skip


async def test_fields_of_anthropics_sdk(deployment: Deployment) -> None:
    model = deployment.plan("many", answering(MESSAGE))
    async with anthropic.AsyncAnthropic(base_url=deployment.url, api_key=deployment.key) as client:
        await client.messages.create(
            model=model, max_tokens=9, messages=[{"role": "user", "content": "x"}], metadata={"user_id": "alice"}
        )
    assert deployment.tokenweir.dimensions(await deployment.entry(model)) == {"end_user": "alice"}
