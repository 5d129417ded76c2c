"""What an answer shows is billed whatever becomes of its usage, and an answer with nothing in it is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.billing.record import Outcome, UsageRecord
from proxy.demo.script import AnyStep, Reset, Script, Send, Stall
from proxy.http.server import wait_until
from proxy.metering.usage import UsageSource
from tests.gateway.inprocess import gateway
from tests.support.net import ask, chat_request, connect
from tests.support.provider import ScriptedProvider

pytestmark = pytest.mark.io

SEARCHED = {
    "type": "response.output_item.done",
    "item": {"type": "web_search_call", "status": "completed", "action": {"type": "search"}},
}
JSON = (("Content-Type", "application/json"),)
SAID = {"choices": [{"index": 0, "message": {"content": "Over the weir."}, "finish_reason": "stop"}]}


def event(document: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps(document).encode()


async def record_of(
    folder: Path, provider: ScriptedProvider, plan: Script, *, stream: bool, path: str, until: bytes = b""
) -> UsageRecord:
    """The record of one request; the client leaves after `until`."""
    provider.script("electron", plan)
    body = ask("electron", stream=stream) if path.endswith("completions") else {"model": "electron", "input": "Hi"}
    body |= {"stream": stream}
    async with gateway(folder, provider.base_url, on_client_disconnect="cancel") as made:
        async with await connect(made.url) as client:
            await client.send(chat_request(body, path=path))
            if until:
                await client.read_body(await client.read_head(), until=until)
            else:
                await client.read()
        assert await wait_until(lambda: bool(made.outbox.records), deadline_s=10)
        [record] = made.outbox.records
        return record


@pytest.mark.parametrize("end", [Reset(), Stall()], ids=["reset", "the client leaves"])
async def test_finished_searches_are_billed_without_a_usage(
    tmp_path: Path, provider: ScriptedProvider, end: AnyStep
) -> None:
    events = [event(SEARCHED | {"output_index": at}) for at in (0, 1)]
    until = events[-1] if isinstance(end, Stall) else b""
    plan = Script(steps=(*map(Send, events), end))
    record = await record_of(tmp_path, provider, plan, stream=True, path="/v1/responses", until=until)
    assert record.reading.usage.searches == 2
    assert record.reading.source is UsageSource.ESTIMATED
    assert record.reading.usage.prompt_tokens


@pytest.mark.parametrize(
    ("stream", "body"),
    [
        (True, b"data: [DONE]\n\n"),
        (True, event({"choices": []}) + b"data: [DONE]\n\n"),
        (False, b'{"choices": []}'),
        (False, b"null"),
        (False, b""),
    ],
)
async def test_an_answer_with_neither_output_nor_usage_costs_nothing(
    tmp_path: Path, provider: ScriptedProvider, stream: bool, body: bytes
) -> None:
    plan = Script(steps=(Send(body),)) if stream else Script(steps=(Send(body),), headers=JSON, framing="length")
    record = await record_of(tmp_path, provider, plan, stream=stream, path="/v1/chat/completions")
    assert record.outcome is Outcome.UPSTREAM_FAILED
    assert record.reading.usage.prompt_tokens is None


@pytest.mark.parametrize(
    "odd", [b'"usage":{"prompt_tokens":9,"completion_tokens":0x5}', b'"deep":' + b"[" * 3000 + b"]" * 3000]
)
async def test_a_json_answer_with_an_unreadable_part_was_served(
    tmp_path: Path, provider: ScriptedProvider, odd: bytes
) -> None:
    body = json.dumps(SAID)[:-1].encode() + b"," + odd + b"}"
    plan = Script(steps=(Send(body),), headers=JSON, framing="length")
    record = await record_of(tmp_path, provider, plan, stream=False, path="/v1/chat/completions")
    assert (record.outcome, record.reading.source) == (Outcome.SERVED, UsageSource.ESTIMATED)
    assert record.reading.usage.completion_tokens
