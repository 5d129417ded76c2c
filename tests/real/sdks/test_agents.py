"""Coding agents before the proxy: each finishes a turn, and the ledger holds what it reported of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.real.sdks.agents import claude_code, codex, opencode
from tests.real.sdks.answers import ANTHROPIC, OPENAI, TEXT
from tests.real.sdks.stand import Stand
from tests.support.socket_provider import Link, SocketProvider
from tests.support.tokenweir import Tokenweir, provider_section

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

# As a provider of one's own, and as the built-in one, which tries a WebSocket first.
CODEX = {
    "custom": """
model = "{model}"
model_provider = "weir"
[model_providers.weir]
name = "weir"
base_url = "{url}/v1"
env_key = "CODEX_API_KEY"
wire_api = "responses"
""",
    "built-in": """
model = "{model}"
openai_base_url = "{url}/v1"
""",
}


def turn(stand: Stand, model: str) -> dict[str, Any]:
    """The entry of the agent's one turn, over HTTP: this provider speaks no WebSocket."""
    (seen,) = stand.seen(model)
    assert stand.keys["KEY"] not in str(seen)
    (entry,) = stand.entries(lambda one: one["model"] == model and "transport" not in one["details"])
    assert (entry["outcome"], entry["usage_source"]) == ("served", "reported")
    return entry


@pytest.mark.parametrize("way", CODEX)
def test_codex_finishes_a_turn(stand: Stand, tmp_path: Path, way: str) -> None:
    model = stand.plan(f"openai/codex-{way}", OPENAI["responses_stream"].plan)
    config = CODEX[way].format(model=model, url=stand.url)
    events = codex(tmp_path, config, {"CODEX_API_KEY": stand.keys["KEY"]})
    said = [one["item"]["text"] for one in events if one.get("item", {}).get("type") == "agent_message"]
    assert said == [TEXT], events
    used = events[-1]["usage"]
    entry = turn(stand, model)
    assert (used["input_tokens"], used["cached_input_tokens"], used["output_tokens"]) == (31, 8, 24)
    assert (entry["prompt_tokens"], entry["cached_tokens"], entry["completion_tokens"]) == (31, 8, 24)
    sent = stand.tokenweir.dimensions(entry)
    assert (sent["session"], sent["tag:originator"]) == (events[0]["thread_id"], "codex_exec")


async def test_codex_finishes_a_turn_over_a_websocket(tmp_path: Path) -> None:
    async with SocketProvider() as speaking:
        speaking.answers = answered
        tokenweir = Tokenweir(tmp_path / "proxy", providers={"speaking": provider_section(speaking.base_url)})
        try:
            config = CODEX["built-in"].format(model="weir-1", url=tokenweir.start().url)
            key, home = tokenweir.key("codex"), tmp_path / "home"
            home.mkdir()
            events = await asyncio.to_thread(codex, home, config, {"CODEX_API_KEY": key})
            entries = tokenweir.entries(2)
            sent = [tokenweir.dimensions(one) for one in entries]
        finally:
            tokenweir.close()
    (link,) = speaking.links
    assert key not in str(link.headers)
    assert [one["item"]["text"] for one in events if one.get("item", {}).get("type") == "agent_message"] == [TEXT]
    used = events[-1]["usage"]
    assert (used["input_tokens"], used["cached_input_tokens"], used["output_tokens"]) == (31, 8, 24)
    told = [(one["outcome"], one["usage_source"], one["details"]["transport"]) for one in entries]
    assert told == [("served", "reported", "websocket")] * 2, "the warm-up and the answer"
    assert [one["session"] for one in sent] == [events[0]["thread_id"]] * 2
    assert [one["prompt_tokens"] for one in entries] == [31, 31]
    assert sorted(one["completion_tokens"] for one in entries) == [0, 24], "they are settled in any order"


async def answered(link: Link, asked: dict[str, Any]) -> None:
    """As a provider of responses answers: a warm-up with nothing."""
    assert asked["type"] == "response.create"
    number, warms_up = len(link.heard), asked.get("generate") is False
    item = {"type": "message", "id": f"msg_{number}", "role": "assistant"}
    content = [{"type": "output_text", "text": TEXT, "annotations": []}]
    output = [] if warms_up else [item | {"status": "completed", "content": content}]
    usage = {
        "input_tokens": 31, "output_tokens": 24 * len(output), "total_tokens": 31 + 24 * len(output),
        "input_tokens_details": {"cached_tokens": 8}, "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
    response = {"id": f"resp_{number}", "status": "in_progress", "output": []}
    at = {"output_index": 0, "item_id": item["id"]}
    text = [
        {"type": "response.output_item.added", "item": item | {"status": "in_progress", "content": []}, **at},
        {"type": "response.output_text.delta", "content_index": 0, "delta": TEXT, **at},
        *({"type": "response.output_item.done", "item": one, **at} for one in output),
    ]
    await link.say({"type": "response.created", "response": response}, *(text if output else ()))
    ended = response | {"status": "completed", "output": output, "usage": usage}
    await link.say({"type": "response.completed", "response": ended})


@pytest.mark.parametrize("ours", ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"])
def test_claude_code_finishes_a_turn_with_both_of_its_keys_set(stand: Stand, tmp_path: Path, ours: str) -> None:
    model = stand.plan(f"anthropic/claude-code-{ours.lower()}", ANTHROPIC["stream"].plan)
    keys = {"ANTHROPIC_API_KEY": "sk-ant-theirs", "ANTHROPIC_AUTH_TOKEN": "sk-ant-theirs"} | {ours: stand.keys["KEY"]}
    result = claude_code(tmp_path, model, {"ANTHROPIC_BASE_URL": stand.url, **keys})
    assert (result["subtype"], result["result"], result["num_turns"]) == ("success", TEXT, 1), result
    used = result["usage"]
    prompt = used["input_tokens"] + used["cache_creation_input_tokens"] + used["cache_read_input_tokens"]
    entry = turn(stand, model)
    assert (entry["prompt_tokens"], entry["cached_tokens"]) == (prompt, used["cache_read_input_tokens"]) == (31, 8)
    assert entry["completion_tokens"] == used["output_tokens"] == 24
    sent = stand.tokenweir.dimensions(entry)
    assert sent["session"] == result["session_id"]
    assert len(sent["end_user"]) == 64, "the device"


def test_claude_code_uses_a_key_of_its_own(stand: Stand, tmp_path: Path) -> None:
    """As with a subscription: its own credential in its own header, ours in another one."""
    model = stand.plan("anthropic/claude-code-own", ANTHROPIC["stream"].plan)
    ours = {"ANTHROPIC_CUSTOM_HEADERS": f"x-tokenweir-key: {stand.keys['KEY_BYOK']}"}
    own = {"ANTHROPIC_AUTH_TOKEN": "sk-ant-oat-theirs"}
    result = claude_code(tmp_path, model, {"ANTHROPIC_BASE_URL": stand.url, **ours, **own})
    assert (result["subtype"], result["result"]) == ("success", TEXT), result
    (seen,) = stand.seen(model)
    headers = {name.lower(): value for name, value in seen["headers"]}
    assert headers["authorization"] == "Bearer sk-ant-oat-theirs"
    assert stand.keys["KEY_BYOK"] not in str(seen)
    entry = turn(stand, model)
    assert (float(entry["charge_usd"]), entry["details"]["byok"]["terms"]) == (0, "nothing")
    assert stand.tokenweir.dimensions(entry)["session"] == result["session_id"]


@pytest.mark.parametrize("name", ["weir", "opencode-weir"])
def test_opencode_finishes_a_turn(stand: Stand, tmp_path: Path, name: str) -> None:
    """It sends the session in another header to providers whose names begin like its own."""
    model = stand.plan(f"openai/{name}", OPENAI["stream_usage"].plan)
    options = {"baseURL": f"{stand.url}/v1", "apiKey": stand.keys["KEY"]}
    events = opencode(tmp_path, name, model, options)
    assert [one["part"]["text"] for one in events if one["type"] == "text"] == [TEXT], events
    (used,) = [one["part"]["tokens"] for one in events if one["type"] == "step_finish"]
    entries = stand.entries(lambda one: one["model"] == model, 2)
    assert len(entries) == 2, "the turn, and the title of its session"
    counted = [(one["prompt_tokens"], one["completion_tokens"]) for one in entries]
    assert (used["input"] + used["cache"]["read"], used["output"]) in counted
    for entry in entries:
        assert (entry["outcome"], entry["usage_source"]) == ("served", "reported")
        assert stand.tokenweir.dimensions(entry)["session"] == events[0]["sessionID"]
