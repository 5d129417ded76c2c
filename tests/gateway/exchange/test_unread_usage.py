"""From outside: what a provider reports and nobody reads is in the entry, in the metrics, and said by `doctor`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.request import urlopen

import pytest

from proxy.demo.script import Script, Send
from tests.support.net import ask, chat_request, connect
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import PRICE, Tokenweir

pytestmark = pytest.mark.process

Make = Callable[..., Tokenweir]
SOON_S = 20.0
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
        steps = (Send(json.dumps(ANSWER | FACTS).encode()),)
        return Script(steps=steps, headers=(("Content-Type", "application/json"),), framing="length")
    delta = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": "Rain."}}]}
    end = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]} | FACTS
    events = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in (delta, end))
    return Script(steps=(Send(events + b"data: [DONE]\n\n"),))


async def asked(running: Tokenweir, provider: ScriptedProvider, key: str, *, stream: bool) -> None:
    name = provider.script(f"facts-{stream}", script(stream=stream))
    async with await connect(running.url) as client:
        await client.send(chat_request(ask(name, stream=stream), key=key))
        assert (await client.read(SOON_S)).status == 200


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_nothing_that_is_reported_passes_unseen(
    tokenweir: Make, provider: ScriptedProvider, stream: bool
) -> None:
    running = tokenweir()
    await asked(running, provider, running.key(), stream=stream)
    (entry,) = running.entries(1)
    details = entry["details"]
    assert details["unread"] == ["tool_usage.image_gen.output_tokens", "usage.energy_kwh", "usage.mood=fast"]
    assert details["beside_usage"] == {"tool_usage.image_gen.output_tokens": 7024}
    assert details["usage"] == FACTS["usage"]
    assert details["service_tier"] == "priority"
    assert details["unpriced_units"] == details["cost_unpriced_units"] == ["tier:priority"]
    with urlopen(f"{running.url}/metrics", timeout=5) as answer:
        metrics = answer.read().decode().splitlines()
    assert 'tokenweir_unread_usage_total{path="usage.energy_kwh",provider="scripted"} 1.0' in metrics
    assert 'tokenweir_unpriced_units_total{provider="scripted",unit="tier:priority"} 1.0' in metrics
    assert "not read: tool_usage.image_gen.output_tokens, usage.energy_kwh, usage.mood=fast" in running.said("ledger")
    examined = running.command("doctor", check=False).stdout
    assert "scripted: usage.energy_kwh is not read, in 1 of the newest 1 entries" in examined
    assert "scripted: tier:priority has no price, in 1 of the newest 1 entries" in examined
    assert SECRET.encode() not in running.outputs()


async def test_what_the_provider_says_that_it_costs_is_kept_beside_ours(
    tokenweir: Make, provider: ScriptedProvider
) -> None:
    running = tokenweir()
    usage = {"prompt_tokens": 90, "completion_tokens": 30, "total_tokens": 120, "cost": 0.00021, "is_byok": False}
    body = json.dumps(ANSWER | {"usage": usage}).encode()
    steps = Script(steps=(Send(body),), headers=(("Content-Type", "application/json"),), framing="length")
    name = provider.script("stated", steps)
    async with await connect(running.url) as client:
        await client.send(chat_request(ask(name, stream=False), key=running.key()))
        assert (await client.read(SOON_S)).status == 200
    (entry,) = running.entries(1)
    assert entry["details"]["stated_usd"] == "0.00021"
    assert "unread" not in entry["details"]
    assert entry["cost_usd"] == "0.000021"
    said = "the provider states 0.00021 USD; cost by its price list: 0.000021"
    assert said in running.said("ledger", "--explain")
    assert (
        "states a cost of 0.00021 USD where the price lists give 0.000021"
        in running.command("doctor", check=False).stdout
    )


async def test_an_operator_says_what_costs_nothing_and_what_a_tier_costs(
    tokenweir: Make, provider: ScriptedProvider
) -> None:
    price = PRICE | {"service_tiers": {"priority": {"input": 0.26, "output": 0.82}}}
    running = tokenweir(
        provider_settings={"not_billed": ["usage.energy_kwh", "usage.mood=fast"]},
        models={"*": {"provider": "scripted", "price": price, "cost": price}},
    )
    await asked(running, provider, running.key(), stream=False)
    (entry,) = running.entries(1)
    assert entry["details"]["unread"] == ["tool_usage.image_gen.output_tokens"]
    assert "unpriced_units" not in entry["details"]
    assert entry["charge_usd"] == "0.0000048"


async def test_what_multiplies_a_price_is_billed_and_explained(tokenweir: Make, provider: ScriptedProvider) -> None:
    price = PRICE | {"multipliers": {"tier:priority": 2}}
    running = tokenweir(models={"*": {"provider": "scripted", "price": price, "cost": PRICE}})
    await asked(running, provider, running.key(), stream=True)
    (entry,) = running.entries(1)
    assert (entry["charge_usd"], entry["cost_usd"]) == ("0.0000048", "0.0000024")
    assert entry["details"]["price"]["multipliers"] == {"tier:priority": "2"}
    assert "unpriced_units" not in entry["details"]
    assert entry["details"]["cost_unpriced_units"] == ["tier:priority"]
    assert "prices of tokens × 2 for tier:priority" in running.said("ledger", "--explain")
    assert running.unreconciled() == []
