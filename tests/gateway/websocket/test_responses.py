"""OpenAI's responses over a WebSocket: requests, warm-ups, lanes, and providers without WebSockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from dataclasses import replace as changed
from typing import Any

import pytest
from aiohttp import WSServerHandshakeError

from proxy.billing.keys import ApiKey
from proxy.billing.record import BillableParts, Outcome
from proxy.billing.reservation import DenialReason
from proxy.http import errors
from proxy.keys.response_owners import ResponseOwner
from proxy.metering.usage import Evidence, Usage
from tests.gateway.websocket.sockets import CREATE, RESPONSES, Stage, begun, completed, named_as, said, tell

pytestmark = pytest.mark.io

# What Codex said before there was `previous_response_id`.
APPEND = {"type": "response.append"}


async def test_a_request_of_responses_is_an_exchange(on: Stage) -> None:
    named_as(on, "alias", "up-1")
    async with on.client(RESPONSES) as client:
        await client.say(CREATE | {"model": "alias", "instructions": "kurz", "stream_id": None})
        link = await on.provider.link()
        sent = await link.hear("response.create")
        assert sent == CREATE | {"model": "up-1", "instructions": "kurz", "stream_id": None}
        assert (link.path, link.query) == ("/v1/responses", "")
        await tell(client, link, begun(), said("Drei"), completed())
    record = await on.record()
    assert (record.opened.model, record.opened.upstream_model) == ("alias", "up-1")
    assert (record.opened.endpoint, record.opened.streamed, record.outcome) == ("/v1/responses", True, Outcome.SERVED)
    assert record.reading.usage == Usage(3, None, 4, None, 7)


async def test_a_silence_begins_with_the_request(on: Stage) -> None:
    """As over HTTP and after a crash: not with the first event, which may come after it."""
    estimator, hidden = on.gateway.handler._ports.estimator, Usage(3, None, 1010, 1000)
    for _ in range(3):
        seen = Evidence(text_events=10, chars_latin=40)
        estimator.learn(f"scripted/{CREATE['model']}", evidence=seen, prompt=None, usage=hidden, silent_s=1.0)
    async with on.creating() as (client, link):
        await asyncio.sleep(0.3)
        await tell(client, link, begun())
    record = await on.record()
    assert (record.outcome, record.reading.usage.completion_tokens) == (Outcome.CLIENT_LEFT, 0)
    assert record.reading.hidden_by_time is not None
    assert record.reading.hidden_by_time >= 290


async def test_a_warm_up_is_billed_as_it_says(on: Stage) -> None:
    async with on.creating(generate=False) as (client, link):
        assert on.gateway.unlimited.asked[0][1] == 0, "nothing is limited"
        await link.say(begun("resp_0"), completed("resp_0", {"input_tokens": 9, "output_tokens": 0, "total_tokens": 9}))
        await client.hear("response.completed")
        await client.say(CREATE | {"previous_response_id": "resp_0"})
        assert (await link.hear("response.create"))["previous_response_id"] == "resp_0"
        await tell(client, link, begun(), completed())
    warm, served = on.records
    assert (warm.reading.usage, warm.opened.completion_tokens_max) == (Usage(9, None, 0, None, 9), 0)
    assert served.opened.prompt_tokens_estimate > 9


async def test_lanes_are_exchanges_beside_each_other(on: Stage) -> None:
    left = {"stream_id": "left"}
    async with on.client(RESPONSES) as client:
        await client.say(CREATE, CREATE | left)
        link = await on.provider.link()
        await link.until(lambda one: len(one.heard) == 2)
        await link.say(begun("b", **left), begun("a"), said("x", **left), completed("b", **left), said("yy"))
        await client.hear("response.completed")
        await on.record()
        assert len(on.records) == 1
        await tell(client, link, completed("a"))
    assert [one.provider_response_id for one in on.records] == ["b", "a"]


async def test_a_response_that_was_steered_to_is_one_that_nobody_asked_for(on: Stage) -> None:
    async with on.creating() as (client, link):
        await tell(client, link, begun("a"))
        await client.say({"type": "response.steer", "previous_response_id": "a", "input": "kürzer"})
        await link.hear("response.steer")
        await link.say({"type": "response.steer.accepted", "steer": {"id": "s"}})
        await link.say(completed("a", status="incomplete"), begun("b"), said("Drei"), completed("b"))
        await client.hear("response.completed")
    assert [(one.provider_response_id, one.reading.usage.completion_tokens) for one in on.records] == [
        ("a", 4),
        ("b", 4),
    ]


async def test_an_error_in_an_answer_frees_its_lane_with_the_next_request(on: Stage) -> None:
    error = {"type": "error", "sequence_number": 3, "error": {"code": "server_error", "message": "x"}}
    async with on.creating() as (client, link):
        await link.say(begun("a"), said("Drei"), error)
        await client.hear("error")
        assert on.records == []
        await client.say(CREATE)
        assert (await on.record()).outcome is Outcome.UPSTREAM_FAILED
        await link.until(lambda one: bool(one.heard))
        await tell(client, link, begun("b"), completed("b"))
    assert on.records[1].outcome is Outcome.SERVED


async def test_an_error_before_an_answer_refuses_the_request(on: Stage) -> None:
    error = {"type": "error", "status": 429, "error": {"code": "rate_limit_exceeded", "message": "x"}}
    async with on.creating() as (client, link):
        await link.say(error)
        assert await client.hear() == error
        record = await on.record()
    assert (record.outcome, record.details["upstream_status"]) == (Outcome.REFUSED_UPSTREAM, 429)


async def test_who_made_a_response_is_remembered(on: Stage) -> None:
    async with on.client(RESPONSES) as client:
        for store in (True, False):
            await client.say(CREATE | {"store": store})
            link = await on.provider.link()
            await link.hear("response.create")
            await tell(client, link, begun(f"resp-{store}"), completed(f"resp-{store}"))
    owner = await on.gateway.owners.owner("resp-True")
    assert owner is not None
    assert (owner.key_id, owner.provider, owner.dialect) == ("k", "scripted", "openai.responses")
    assert await on.gateway.owners.owner("resp-False") is None
    async with on.creating(previous_response_id="resp-True") as (client, _):
        await client.say(CREATE | {"previous_response_id": "resp-False", "stream_id": "left"})
        error = await client.hear("error")
        assert (error["status"], error["error"]["code"], error["stream_id"]) == (
            400,
            "previous_response_not_found",
            "left",
        )


# The first asks for a response; the others say more to a connection that has one.
SAYING = {"create": CREATE, "steer": {"type": "response.steer", "previous_response_id": "a"}, "append": APPEND}


@pytest.mark.parametrize("what", SAYING)
async def test_a_file_of_somebody_else_is_not_named_over_a_websocket_either(on: Stage, what: str) -> None:
    async def files(key: ApiKey, file_ids: Collection[str]) -> set[str]:
        if set(file_ids) != {"file-mine"}:
            raise errors.unknown_file_named("file-theirs")
        return {"scripted"}

    opener = on.gateway.sockets._opener
    opener._ports = changed(opener._ports, files=files)
    async with on.creating(store=False) as (client, link):
        await tell(client, link, begun("a"))
        for file_id in ("file-theirs", "file-mine"):
            part = {"type": "input_file", "file_id": file_id}
            await client.say(SAYING[what] | {"input": [{"role": "user", "content": [part]}]})
        error = await client.hear("error")
        assert "file-theirs" in error["error"]["message"]
        await link.until(lambda one: bool(one.heard))
        assert link.heard[0]["input"][0]["content"][0]["file_id"] == "file-mine"


@pytest.mark.parametrize("what", SAYING)
async def test_a_response_of_somebody_else_is_not_gone_on_with_over_a_websocket_either(on: Stage, what: str) -> None:
    def owner(key_id: str) -> ResponseOwner:
        return ResponseOwner(key_id, "default", "scripted", "openai.responses", None, f"ex-{key_id}")

    on.gateway.owners.made("theirs", owner("other"))
    on.gateway.owners.made("mine", owner("k"))
    async with on.creating(store=False) as (client, link):
        await tell(client, link, begun("a"))
        for response_id in ("theirs", "nobody's", "mine", "a"):
            await client.say(SAYING[what] | {"previous_response_id": response_id, "input": "weiter"})
        for response_id in ("theirs", "nobody's"):
            error = (await client.hear("error"))["error"]
            assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")
            assert response_id in error["message"]
        await link.until(lambda one: len(one.heard) == 2)
        assert [one["previous_response_id"] for one in link.heard] == ["mine", "a"], "it is this connection's"


async def test_a_model_of_another_provider_needs_a_connection_of_its_own(on: Stage) -> None:
    provider = on.gateway.provider
    other = changed(provider, settings=changed(provider.settings, name="other"))
    named_as(on, "proton", "p", provider=other)
    async with on.creating() as (client, _):
        await client.say(CREATE | {"model": "proton"})
        assert (await client.hear("error"))["error"]["code"] == "other_provider"
        assert on.gateway.outbox.opened == 1


async def test_nothing_goes_to_nobody(on: Stage) -> None:
    async with on.client(RESPONSES) as client:
        for message in ({"type": "response.steer"}, b"\x00"):
            await client.say(message)
            assert (await client.hear("error"))["error"]["code"] == "nothing_asked"
        assert on.provider.links == []


@pytest.mark.parametrize("answer", [(404, {"error": {"message": "Invalid URL"}}), (403, None)])
async def test_a_provider_without_websockets_sends_its_clients_to_http(on: Stage, answer: Any) -> None:
    on.provider.refuses = answer
    async with on.client(RESPONSES) as client:
        await client.say(CREATE)
        error = await client.hear("error")
        assert (error["status"], error["error"]["code"]) == (426, "upgrade_not_supported")
        assert (await client.hear_end())[0] == 1011
    record = await on.record()
    assert (record.outcome, record.bills) == (Outcome.REFUSED_UPSTREAM, BillableParts.NOTHING)

    with pytest.raises(WSServerHandshakeError) as sent_away:
        async with on.client(RESPONSES):
            pass
    assert sent_away.value.status == 426, "at once, from now on"


@pytest.mark.parametrize(
    ("answer", "status", "code", "outcome"),
    [
        ((429, {"error": {"message": "Slow down.", "code": "too_fast"}}), 429, "too_fast", Outcome.REFUSED_UPSTREAM),
        ((401, {"error": {"message": "x"}}), 502, "upstream_auth", Outcome.REFUSED_UPSTREAM),
        ((500, {"error": {"message": "broken"}}), 500, "upstream_refused", Outcome.UPSTREAM_FAILED),
    ],
)
async def test_a_provider_that_cannot_be_connected_to_is_told(
    on: Stage, answer: Any, status: int, code: str, outcome: Outcome
) -> None:
    on.provider.refuses = answer
    async with on.client(RESPONSES) as client:
        await client.say(CREATE)
        error = await client.hear("error")
        assert (error["status"], error["error"]["code"]) == (status, code)
        assert (await client.hear_end())[0] == 1011
    assert (await on.record()).outcome is outcome
    on.provider.refuses = None
    async with on.client(RESPONSES) as client:
        await client.say(CREATE)
        await (await on.provider.link()).hear("response.create")


async def test_what_is_no_request_is_refused_by_its_field(on: Stage) -> None:
    async with on.client(RESPONSES) as client:
        for message, param in (
            (CREATE | {"background": True}, "background"),
            (CREATE | {"model": 5}, "model"),
            (CREATE | {"response": {"model": "proton"}}, "response"),
        ):
            await client.say(message)
            error = await client.hear("error")
            assert (error["status"], error["error"]["param"]) == (400, param)
    assert on.provider.links == []


async def test_ids_that_only_json_can_write(on: Stage) -> None:
    """Half a surrogate pair: a refusal gives back the client's id as it was written, and the session continues."""
    async with on.client(RESPONSES) as client:
        await client.say(json.dumps(CREATE | {"previous_response_id": "\ud800"}))
        error = await client.hear("error")
        assert (error["error"]["param"], error["status"]) == ("previous_response_id", 400)
        await client.say(json.dumps(CREATE | {"model": "unknown", "stream_id": "\ud800"}))
        error = await client.hear("error")
        assert (error["error"]["code"], error["stream_id"]) == ("model_not_found", "\ud800")
        await client.say(json.dumps(CREATE | {"stream_id": "\ud800"}))
        await (await on.provider.link()).hear("response.create")
    async with on.talk() as (client, _):
        on.gateway.unlimited.denies = DenialReason.MONEY
        await client.say(json.dumps({"type": "response.create", "event_id": "\udfff"}))
        error = await client.hear("error")
        assert error["error"]["event_id"] == "\udfff"
