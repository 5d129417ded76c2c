"""Every shape of the four systems, read through the proxy by the clients: it arrives as sent, and is booked as it was.

Law: one test is one shape read by one client; the provider's truth file says what must have happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from decimal import Decimal
from itertools import cycle, islice
from statistics import mean
from typing import Any

import pytest

from proxy.demo.script import AS_SENT, Cut
from tests.conformance.clients import Client
from tests.conformance.shapes import COUNTS, Fixture, counts, dollars, fixtures
from tests.conformance.stand import SOON_S, Stand
from tests.support.net import post_chat
from tests.support.tokenweir import COST

FIXTURES = fixtures()
# A shape with a usage event of its own is asked for in both ways: what arrives differs.
ASKED = [(one, False) for one in FIXTURES] + [(one, True) for one in FIXTURES if one.tells_usage_apart]
CUTS = {"by event": AS_SENT, "whole": Cut(whole=True), "by byte": Cut(size=1), "at random": Cut(seed=7)}


def _name(value: object) -> str:
    if isinstance(value, Fixture):
        return f"{value.system}-{value.name}"
    return ("asked" if value else "unasked") if isinstance(value, bool) else str(value)


CLIENTS = ("python_async", "node", "curl")
SHAPES_EACH = 6


def _reading() -> Iterator[Any]:
    """Every shape with one client; every other client six shapes of its own, spread over the four systems. The cuts
    take turns."""
    cuts = cycle(CUTS)
    for shape, asked in ASKED:
        yield pytest.param("python_client", shape, asked, next(cuts), marks=pytest.mark.thorough)
    for place, client in enumerate(CLIENTS):
        tier = pytest.mark.external if client in ("node", "curl") else pytest.mark.thorough
        for shape, asked in islice(ASKED, place, None, len(ASKED) // SHAPES_EACH):
            yield pytest.param(client, shape, asked, next(cuts), marks=tier)


def _cutting() -> Iterator[Any]:
    """Every third shape at one of the cuts, which take turns; in `make test-thorough` every one at all of them."""
    for number, ((shape, asked), cut) in enumerate(zip(ASKED, cycle(CUTS))):
        if not number % 3:
            yield pytest.param(shape, asked, [cut], id=f"{_name(shape)}-{_name(asked)}-{cut}")
        yield pytest.param(
            shape, asked, CUTS, marks=pytest.mark.thorough, id=f"{_name(shape)}-{_name(asked)}-every cut"
        )


@pytest.mark.parametrize(("client", "shape", "asked", "cut"), list(_reading()), ids=_name, indirect=["client"])
def test_a_client_reads_a_shape_and_the_ledger_has_it(
    stand: Stand, client: Client, shape: Fixture, asked: bool, cut: str
) -> None:
    model = stand.plan(shape.system, shape.script(CUTS[cut]), shape.name)
    heard = client.ask(stand.base_url, stand.key, shape.request(model, usage_asked=asked))
    truth = shape.truth
    assert heard.text(cumulative=truth.get("cumulative", False)) == shape.text
    assert heard.reasoning == truth.get("reasoning", "")
    assert heard.arguments == truth.get("tool_arguments", "")
    assert heard.finish_reason == truth["finish_reason"]
    assert heard.response_id == shape.response_id
    assert heard.broken == shape.breaks_off
    assert (heard.usage is not None) == (truth["usage"] is not None and (asked or not shape.tells_usage_apart))
    if heard.body is not None:
        assert heard.body == shape.body(usage_asked=asked)
    expect_entry(stand.entry(model), shape, asked=asked)


@pytest.mark.parametrize(("shape", "asked", "cuts"), list(_cutting()))
async def test_the_bytes_are_the_providers_at_every_cut(
    stand: Stand, shape: Fixture, asked: bool, cuts: Iterable[str]
) -> None:
    models = [stand.plan(shape.system, shape.script(CUTS[cut]), shape.name) for cut in cuts]
    requests = (shape.request(model, usage_asked=asked) for model in models)
    responses = await asyncio.gather(
        *(post_chat(stand.url, request, key=stand.key, timeout_s=SOON_S) for request in requests)
    )
    for model, response in zip(models, responses, strict=True):
        assert response.body == shape.body(usage_asked=asked)
        assert (response.ended != "complete") == shape.breaks_off
        entry = stand.entry(model)
        assert response.header("x-tokenweir-exchange") == entry["exchange_id"]
        expect_entry(entry, shape, asked=asked)


@pytest.mark.thorough
def test_the_provider_is_asked_for_usage_whatever_the_client_asked(stand: Stand, python_client: Client) -> None:
    for shape in (one for one in FIXTURES if one.streamed and not one.breaks_off):
        model = stand.plan(shape.system, shape.script(), shape.name)
        python_client.ask(stand.base_url, stand.key, shape.request(model))
        (seen,) = stand.seen(model)
        assert seen["body"]["stream_options"] == {"include_usage": True}
        assert {**seen["body"], "model": model} == shape.request(model, usage_asked=True)


def expect_entry(entry: dict[str, Any], shape: Fixture, *, asked: bool) -> None:
    """The entry says what the truth file says, and prices it right."""
    truth = shape.truth
    assert entry["outcome"] == truth["outcome"]
    assert entry["finish_reason"] == truth["finish_reason"]
    assert entry["provider_response_id"] == shape.response_id
    assert entry["provider"] == shape.system
    assert entry["streamed"] is shape.streamed
    assert entry["events"] == shape.events(usage_asked=asked)
    assert entry["bytes"] == len(shape.body(usage_asked=asked))
    assert "unread" not in entry["details"]
    if truth["usage"] is not None:
        _expect_reported(entry, truth)
    elif shape.text or truth.get("reasoning"):
        _expect_estimated(entry, truth)
    else:
        assert entry["usage_source"] == "none"
        assert counts(entry) == dict.fromkeys(COUNTS)
        assert (Decimal(entry["charge_usd"]), Decimal(entry["cost_usd"])) == (0, 0)


def _expect_reported(entry: dict[str, Any], truth: dict[str, Any]) -> None:
    assert entry["usage_source"] == "reported"
    assert entry["estimator"] is None
    assert counts(entry) == truth["usage"]
    usage = truth["usage"]
    tokens = (usage["prompt_tokens"], usage["completion_tokens"])
    assert Decimal(entry["charge_usd"]) == dollars(*tokens, cached=usage["cached_tokens"])
    assert Decimal(entry["cost_usd"]) == dollars(*tokens, cached=usage["cached_tokens"], rates=COST)
    assert entry["details"].get("provider_timings") == _summed(truth.get("timings"))


def _summed(timings: dict[str, Any] | None) -> dict[str, Any] | None:
    if timings is None:
        return None
    decode = timings["decode_time_arr"]
    return {
        "prefill_time": timings["prefill_time"],
        "decode_time_count": len(decode),
        "decode_time_mean": pytest.approx(mean(decode)),
        "decode_time_max": max(decode),
    }


def _expect_estimated(entry: dict[str, Any], truth: dict[str, Any]) -> None:
    assert entry["usage_source"] == "estimated"
    assert entry["estimator"]
    said = len(truth["text"]) + len(truth.get("reasoning", ""))
    limit = truth.get("request", {}).get("max_tokens", said)
    assert 1 <= entry["completion_tokens"] <= min(said, limit)
    assert entry["prompt_tokens"] > 0
    billed_prompt = entry["prompt_tokens"] if truth["outcome"] == "served" else 0
    assert Decimal(entry["charge_usd"]) == dollars(billed_prompt, entry["completion_tokens"])
    assert entry["details"].get("delivered_only", False) == (truth["outcome"] != "served")
