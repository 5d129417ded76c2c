"""From outside: what a provider reports and nobody reads is in the entry, in the metrics, and said by `doctor`."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.request import urlopen

import pytest

from proxy.demo.script import Script, Send, json_script
from tests.gateway.exchange.priced import Priced
from tests.support.net import ask

pytestmark = pytest.mark.process

SECRET = "a sentence of somebody's prompt"
FACTS: dict[str, Any] = {
    "tool_usage": {"image_gen": {"output_tokens": 7024, "note": SECRET}, "web_search": {"num_requests": 0}},
    "usage": {
        "prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12, "queue_time": 0.2,
        "energy_kwh": 0.5, "mood": "fast",
    },
    "service_tier": "priority",
}  # fmt: skip
ANSWER = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1_790_000_000, "model": "weir-1",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Rain."}, "finish_reason": "stop"}],
}  # fmt: skip


def script(*, stream: bool) -> Script:
    if not stream:
        return json_script(ANSWER | FACTS)
    delta = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": "Rain."}}]}
    end = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]} | FACTS
    events = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in (delta, end))
    return Script(steps=(Send(events + b"data: [DONE]\n\n"),))


async def asked(priced: Priced, section: str, *, stream: bool) -> dict[str, Any]:
    """The entry of a request to a provider section."""
    model = f"{section}/{priced.provider.script('facts', script(stream=stream))}"
    await priced.post(ask(model, stream=stream))
    (entry,) = priced.entries_of(model)
    return entry


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_nothing_that_is_reported_passes_unseen(priced: Priced, stream: bool) -> None:
    section = "facts-stream" if stream else "facts-plain"
    entry = await asked(priced, section, stream=stream)
    details = entry["details"]
    assert details["unread"] == ["tool_usage.image_gen.output_tokens", "usage.energy_kwh", "usage.mood=fast"]
    assert details["beside_usage"] == {"tool_usage.image_gen.output_tokens": 7024}
    assert details["usage"] == FACTS["usage"]
    assert details["service_tier"] == "priority"
    assert details["unpriced_units"] == details["cost_unpriced_units"] == ["tier:priority"]
    with urlopen(f"{priced.url}/metrics", timeout=5) as answer:
        metrics = answer.read().decode().splitlines()
    assert f'tokenweir_unread_usage_total{{path="usage.energy_kwh",provider="{section}"}} 1.0' in metrics
    assert f'tokenweir_unpriced_units_total{{provider="{section}",unit="tier:priority"}} 1.0' in metrics
    assert "not read: tool_usage.image_gen.output_tokens, usage.energy_kwh, usage.mood=fast" in priced.said("ledger")
    examined = priced.found("doctor")[1]
    assert re.search(rf"{section}: usage.energy_kwh is not read, in 1 of the newest \d+ entries", examined)
    assert re.search(rf"{section}: tier:priority has no price, in 1 of the newest \d+ entries", examined)
    assert SECRET.encode() not in priced.outputs()


async def test_what_the_provider_says_that_it_costs_is_kept_beside_ours(priced: Priced) -> None:
    usage = {"prompt_tokens": 90, "completion_tokens": 30, "total_tokens": 120, "cost": 0.00021, "is_byok": False}
    model = f"stated-usage/{priced.provider.script('stated', json_script(ANSWER | {'usage': usage}))}"
    await priced.post(ask(model, stream=False))
    (entry,) = priced.entries_of(model)
    assert entry["details"]["stated_usd"] == "0.00021"
    assert "unread" not in entry["details"]
    assert entry["cost_usd"] == "0.000021"
    said = "the provider states 0.00021 USD; cost by its price list: 0.000021"
    assert said in priced.said("ledger", "--explain")
    assert "states a cost of 0.00021 USD where the price lists give 0.000021" in priced.found("doctor")[1]


@pytest.mark.parametrize(("section", "completion"), [("facts-plain", 0), ("misreports", 79)])
async def test_a_count_that_the_answer_refutes_is_shown_and_estimated_only_where_the_operator_wants_it(
    priced: Priced, section: str, completion: int
) -> None:
    said = ANSWER | {"choices": [{"index": 0, "message": {"content": "water " * 60}, "finish_reason": "stop"}]}
    usage = {"prompt_tokens": 9, "completion_tokens": 0, "total_tokens": 9}
    model = f"{section}/{priced.provider.script('refuted', json_script(said | {'usage': usage}))}"
    await priced.post(ask(model, stream=False))
    (entry,) = priced.entries_of(model)
    assert entry["completion_tokens"] == pytest.approx(completion, rel=0.4)
    assert entry["usage_source"] == ("estimated" if completion else "reported")
    assert entry["details"]["refuted"] == {"completion_tokens": {"reported": 0, "at_least": 3}}
    assert "refuted: 0 completion_tokens reported, at least 3 by the text" in priced.said("ledger", "--explain")
    refuted = f"{section}/{model}: completion_tokens contradicts the answer"
    assert refuted in priced.found("doctor")[1]


async def test_an_operator_says_what_costs_nothing_and_what_a_tier_costs(priced: Priced) -> None:
    entry = await asked(priced, "unbilled", stream=False)
    assert entry["details"]["unread"] == ["tool_usage.image_gen.output_tokens"]
    assert "unpriced_units" not in entry["details"]
    assert entry["charge_usd"] == "0.0000048"


async def test_what_multiplies_a_price_is_billed_and_explained(priced: Priced) -> None:
    entry = await asked(priced, "doubled", stream=True)
    assert (entry["charge_usd"], entry["cost_usd"]) == ("0.0000048", "0.0000024")
    assert entry["details"]["price"]["multipliers"] == {"tier:priority": "2"}
    assert "unpriced_units" not in entry["details"]
    assert entry["details"]["cost_unpriced_units"] == ["tier:priority"]
    assert "prices of tokens × 2 for tier:priority" in priced.said("ledger", "--explain")
