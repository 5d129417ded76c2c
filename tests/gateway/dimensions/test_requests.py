"""Dimensions of real requests: from what a client sends to the entry of its exchange."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from proxy.billing.dimensions import PRESETS, KeyDimensions, hashed
from proxy.demo.script import Script, Send
from proxy.gateway.dimensions.ids import DimensionIds
from proxy.gateway.dimensions.requests import READERS_MAX, RequestDimensions
from proxy.settings.dimensions import DimensionHeaders, DimensionSettings
from tests.gateway.deployment import Deployment
from tests.gateway.dimensions.clients import Values, proxied
from tests.gateway.inprocess import KEY, NamedValues
from tests.support.net import ask, post_chat

pytestmark = [pytest.mark.io, pytest.mark.process]

ANSWER = Script(steps=(Send(json.dumps({"object": "chat.completion", "model": "m", "choices": []}).encode()),))
SENT = {
    "x-tokenweir-end-user": "alice",
    "x-tokenweir-tags": "team=red",
    "baggage": "session.id=s7",
    "x-portkey-trace-id": "t",
}


async def test_what_a_client_sends_is_in_its_entry_by_ids_and_goes_to_no_provider(deployment: Deployment) -> None:
    model = deployment.plan("cancel", ANSWER)
    sent = ask(model, stream=False) | {"user": "other", "metadata": {"stage": "test"}}
    first, second = [await post_chat(deployment.url, sent, key=deployment.key, headers=SENT) for _ in range(2)]
    assert first.status == second.status == 200
    one, two = await deployment.entries(model, 2)
    assert one["details"]["dimensions"] == two["details"]["dimensions"]
    assert deployment.tokenweir.dimensions(one) == {
        "end_user": "alice", "session": "s7", "run": "t", "tag:team": "red", "tag:stage": "test",
    }  # fmt: skip
    assert "alice" not in json.dumps(one)
    for seen in deployment.seen(model):
        assert not {name.lower() for name, _ in seen["headers"]} & SENT.keys()


async def test_an_invalid_header_of_ours_is_refused_by_its_name(deployment: Deployment) -> None:
    model = deployment.plan("cancel", ANSWER)
    headers = {"x-tokenweir-tags": "team"}
    response = await post_chat(deployment.url, ask(model), key=deployment.key, headers=headers)
    error = json.loads(response.body)["error"]
    assert (response.status, error["param"], error["code"]) == (400, "x-tokenweir-tags", "invalid_header")
    assert deployment.seen(model) == []


async def test_a_request_that_names_nobody_has_no_detail(deployment: Deployment) -> None:
    _, entry = await deployment.exchange("cancel", ANSWER, stream=False)
    assert "dimensions" not in entry["details"]


async def test_no_claim_frees_a_request_from_its_keys_limits_and_fixed_values(deployment: Deployment) -> None:
    model = deployment.plan("cancel", ANSWER)
    key = deployment.tokenweir.key("one a minute", "--rpm", "1", "--dimension", "end_user=alice")
    answers = [
        await post_chat(deployment.url, ask(model, stream=False), key=key, headers={"x-tokenweir-end-user": user})
        for user in ("bob", "carl")
    ]
    assert [one.status for one in answers] == [200, 429]
    assert deployment.tokenweir.dimensions(await deployment.entry(model)) == {"end_user": "alice"}


def requests(values: Any = None, **settings: Any) -> RequestDimensions:
    ids = DimensionIds(values or NamedValues(), lambda _: None, new_values_max=10)
    return RequestDimensions(DimensionSettings(**settings), ids, b"pepper")


async def test_a_key_fixes_values_and_chooses_sources() -> None:
    dimensions, headers = (
        requests(),
        proxied({"x-tokenweir-end-user": "bob", "x-tokenweir-run": "7", "baggage": "session.id=s"}),
    )
    key = replace(KEY, dimensions=KeyDimensions(("baggage",), {"end_user": "alice", "tag:team": "red"}))
    assert dimensions.sent(KEY, headers, "openai.chat", {}) == {"end_user": "bob", "run": "7", "session": "s"}
    assert dimensions.sent(key, headers, "openai.chat", {"user": "x"}) == {
        "end_user": "alice", "tag:team": "red", "session": "s",
    }  # fmt: skip
    silent = replace(KEY, dimensions=KeyDimensions((), {}))
    assert dimensions.sent(silent, headers, "openai.chat", {"user": "x"}) == {}
    only_fixed = replace(KEY, dimensions=KeyDimensions(None, {"run": "1"}))
    assert dimensions.sent(only_fixed, headers, "openai.chat", {})["run"] == "1"
    for number in range(3 * READERS_MAX):
        chosen = tuple(one for place, one in enumerate(PRESETS) if number >> place & 1)
        dimensions.sent(replace(KEY, dimensions=KeyDimensions(chosen, {})), headers, "openai.chat", {})
    assert len(dimensions._rules.readers) <= READERS_MAX


async def test_settings_apply_by_a_reload() -> None:
    dimensions, headers = requests(), proxied({"x-user": "alice", "x-tokenweir-end-user": "no"})
    changed = DimensionSettings(
        sources=("tokenweir",), headers=DimensionHeaders(end_user="x-user"), new_values_per_key_hour=3
    )
    use = dimensions.prepared(changed)
    assert dimensions.sent(KEY, headers, "openai.chat", {"user": "x"}) == {"end_user": "no"}
    use()
    assert dimensions.sent(KEY, headers, "openai.chat", {"user": "x"}) == {"end_user": "alice"}
    assert dimensions._ids.new_values_max == 3


async def test_end_users_can_be_hashed() -> None:
    values = Values()
    dimensions = requests(values, hash_end_users=True)
    await dimensions.ids(KEY, {"end_user": "alice", "session": "s"})
    [wanted] = values.calls
    assert {one.dimension: one.value for one in wanted} == {"end_user": hashed("alice", b"pepper"), "session": "s"}
    assert hashed("alice", b"pepper") != hashed("alice", b"other")
    dimensions._ids.close()
