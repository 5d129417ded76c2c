"""From outside: what else a price depends on than the tokens of one model: other models, what the provider states, who
pays."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from proxy.demo.script import Script, Send, json_script
from tests.gateway.exchange.priced import Priced
from tests.support.net import ask
from tests.support.tokenweir import PRICE, Tokenweir

pytestmark = pytest.mark.process

IMAGES = {"input_tokens": 31, "output_tokens": 6_993, "output_tokens_details": {"image_tokens": 6_993}}
DRAWN = {
    "id": "resp_1", "object": "response", "status": "completed",
    "tools": [{"type": "function", "name": "f"}, {"type": "image_generation", "model": "img"}],
    "output": [{"type": "image_generation_call", "id": "ig_1", "status": "completed"}],
    "usage": {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}, "tool_usage": {"image_gen": IMAGES},
}  # fmt: skip
MILLION = 10**6


def answer_of(usage: dict[str, Any], **more: str) -> Script:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Rain."}, "finish_reason": "stop"}
    return json_script({"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage, **more})


def rerated(running: Tokenweir, model: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(running.said("rerate", "--model", model, "--since", "1h", "--dry-run"))
    return told


@pytest.mark.parametrize(
    "stream", [pytest.param(False, id="plain"), pytest.param(True, id="stream", marks=pytest.mark.slow)]
)
async def test_the_images_of_a_tool_are_billed_at_the_prices_of_their_model(priced: Priced, stream: bool) -> None:
    script = json_script(DRAWN)
    if stream:
        begun = {"type": "response.created", "response": DRAWN | {"status": "in_progress", "usage": None}}
        events = (begun, {"type": "response.completed", "response": DRAWN})
        script = Script(steps=(Send(b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)),))
    name = priced.provider.script("draws", script)
    body = {"model": name, "input": "A weir.", "stream": stream}
    await priced.post(body, "/v1/responses")
    (entry,) = priced.entries_of(name)
    own = 100 * 2 + 10 * 8
    assert Decimal(entry["charge_usd"]) == Decimal(own + 31 * 5 + 6_993 * 40) / MILLION
    assert Decimal(entry["cost_usd"]) == Decimal(own + 31 * 4 + 6_993 * 20) / MILLION
    assert (entry["model"], entry["completion_tokens"]) == (name, 10)
    assert entry["details"]["other_models"][0]["model"] == "img"
    assert "unread" not in entry["details"]
    assert "6993 image_output of img × 40 per million" in priced.said("ledger", "--explain")
    assert rerated(priced, name)["adjusted"] == 0


@pytest.mark.thorough
async def test_an_image_model_without_a_price_is_named(priced: Priced) -> None:
    tools = [{"type": "image_generation", "model": "img-unpriced"}]
    name = priced.provider.script("draws-unpriced", json_script(DRAWN | {"tools": tools}))
    await priced.post({"model": name, "input": "A weir."}, "/v1/responses")
    (entry,) = priced.entries_of(name)
    assert entry["details"]["unpriced_units"] == entry["details"]["cost_unpriced_units"] == ["model:img-unpriced"]
    assert "drawing: model:img-unpriced has no price" in priced.found("doctor")[1]


async def test_the_model_that_served_instead_is_billed_at_its_own_prices(priced: Priced) -> None:
    steps = [
        {"type": "message", "model": "fable", "input_tokens": 200, "output_tokens": 7},
        {"type": "fallback_message", "model": "opus", "input_tokens": 300, "output_tokens": 40},
    ]
    message = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "opus", "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "Rain."}],
        "usage": {"input_tokens": 300, "output_tokens": 40, "iterations": steps},
    }  # fmt: skip
    name = priced.provider.script("fable", json_script(message))
    message["usage"]["iterations"][0]["model"] = name  # type: ignore[index]
    name = priced.provider.script("fable", json_script(message))
    body = {"model": name, "max_tokens": 50, "messages": [{"role": "user", "content": "Hm?"}]}
    await priced.post(body, "/v1/messages")
    (entry,) = priced.entries_of(name)
    assert Decimal(entry["charge_usd"]) == Decimal(300 * 5 + 40 * 25 + 200 * 10 + 7 * 50) / MILLION
    assert entry["cost_usd"] == entry["charge_usd"]
    assert (entry["model"], entry["upstream_model"], entry["details"]["served_instead_of"]) == (name, "opus", name)
    assert (entry["prompt_tokens"], entry["completion_tokens"]) == (300, 40)
    assert rerated(priced, name)["adjusted"] == 0


async def test_an_organization_s_discount_is_charged_shown_and_rated_again(priced: Priced) -> None:
    name = "ruled/" + priced.provider.script("ruled", answer_of({"prompt_tokens": 1_000, "completion_tokens": 100}))
    keys = [priced.key("anna", "--project", "of-acme"), priced.key("bob")]
    for key in keys:
        await priced.post(ask(name, stream=False), key=key)
    anna, bob = sorted(priced.entries_of(name, 2), key=lambda one: str(one["key_alias"]))
    list_price = Decimal(1_000) * Decimal(str(PRICE["input"])) + Decimal(100) * Decimal(str(PRICE["output"]))
    assert Decimal(bob["charge_usd"]) == list_price / MILLION
    assert Decimal(anna["charge_usd"]) == list_price * Decimal("0.9") / MILLION
    assert anna["cost_usd"] == bob["cost_usd"]
    assert anna["price_version"] == f"{bob['price_version']}+acme"
    assert anna["details"]["price"]["multipliers"] == {"rule:acme": "0.9"}
    assert anna["details"]["cost"]["multipliers"] == {"rule:supplier": "1/2"}
    assert "all prices × 0.9 by the rule acme" in priced.said("ledger", "--explain")
    assert rerated(priced, name)["adjusted"] == 0
    why = priced.said("prices", "why", name, "--organization", "acme")
    assert "all prices × 0.9 by the rule acme, in the prices above" in why
    assert "all prices × 1/2 by the rule supplier, in the prices above" in why


async def test_what_the_provider_states_is_the_price_with_a_markup(priced: Priced) -> None:
    counts = {"prompt_tokens": 1_000, "completion_tokens": 100, "total_tokens": 1_100}
    stating = "stating/" + priced.provider.script(
        "states", answer_of(counts | {"cost": 0.00021}, service_tier="priority")
    )
    silent = "stating/" + priced.provider.script("silent", answer_of(counts))
    for name in (stating, silent):
        await priced.post(ask(name, stream=False))
    (stated,), (other,) = priced.entries_of(stating), priced.entries_of(silent)
    assert not stated["details"].keys() & {"unpriced_units", "cost_unpriced_units"}, "the tier is in what it states"
    assert (stated["model"], stated["cost_usd"], stated["charge_usd"]) == (stating, "0.00021", "0.0002205")
    list_price = Decimal(1_000) * Decimal(str(PRICE["input"])) + Decimal(100) * Decimal(str(PRICE["output"]))
    assert Decimal(other["charge_usd"]) == list_price * Decimal("1.05") / MILLION
    assert "0.0002205 = 0.00021 stated × 1 × 1.05" in priced.said("ledger", "--explain")
    assert [rerated(priced, name)["adjusted"] for name in (stating, silent)] == [0, 0]
