"""Coding agents before the proxy: each finishes a turn, and the ledger holds what it reported of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.real.sdks.agents import claude_code, codex
from tests.real.sdks.answers import ANTHROPIC, OPENAI, TEXT
from tests.real.sdks.stand import Stand

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
    """The entry of the agent's one turn."""
    (seen,) = stand.seen(model)
    assert stand.keys["KEY"] not in str(seen)
    entry = stand.entry(model)
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
