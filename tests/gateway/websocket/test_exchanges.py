"""The exchanges of a Realtime session: who opens them, which model serves, and that nothing passes uncounted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from aiohttp import WSMsgType

from proxy.billing.limits import Limits
from proxy.billing.record import BillableParts, Outcome
from proxy.http.json_body import DEPTH_MAX
from proxy.metering.usage import Usage, UsageSource
from tests.gateway.websocket.sockets import (
    EAR,
    SCOPES,
    SESSION,
    TRANSCRIPT,
    USAGE,
    Limited,
    Stage,
    ask,
    begun,
    done,
    named_as,
    priced_stage,
    said,
    stage,
    tell,
)

pytestmark = pytest.mark.io


async def test_a_response_is_an_exchange(on: Stage) -> None:
    async with on.answering(max_output_tokens=50) as (client, link):
        (running,) = on.gateway.handler.live
        assert (running.running().state, running.running().endpoint) == ("waiting", "/v1/realtime")
        await tell(client, link, begun(), said("Drei Euro"))
        snapshot = running.running()
        assert (snapshot.state, snapshot.events, snapshot.usage_source) == ("streaming", 2, "estimated")
        assert snapshot.completion_tokens > 0
        assert on.gateway.handler.owners.key_of(running.exchange_id) == "k"
        await tell(client, link, done())
    record = await on.record()
    assert (record.outcome, record.reading.usage, record.reading.source) == (
        Outcome.SERVED, Usage(3, None, 4, None, 7), UsageSource.REPORTED,
    )  # fmt: skip
    assert (record.events, record.finish_reason, record.provider_response_id) == (3, "completed", "resp_1")
    assert (record.opened.endpoint, record.opened.completion_tokens_max) == ("/v1/realtime", 50)
    assert (record.opened.model, record.details["transport"]) == ("electron", "websocket")
    assert record.bytes == sum(len(json.dumps(event)) for event in (begun(), said("Drei Euro"), done()))


async def test_a_response_that_the_provider_begins_is_one_too(on: Stage) -> None:
    """As where it listens for the end of the client's speech."""
    async with on.talk() as (client, link):
        on.gateway.outbox.holds = True
        await link.say(begun(), said("Drei"))
        await on.until(lambda: on.gateway.outbox.durable is not None)
        assert on.gateway.outbox.durable is not None
        with pytest.raises(TimeoutError):
            await client.socket.receive(timeout=0.1)
        on.gateway.outbox.durable.set_result(None)
        assert await client.hear() == begun(), "nothing passes before it is durable"
        await tell(client, link, done())
    assert (await on.record()).outcome is Outcome.SERVED


async def test_responses_may_run_beside_each_other(on: Stage) -> None:
    async with on.answering(conversation="none") as (client, link):
        await ask(client, link, conversation="none")
        await link.say(begun("a"), begun("b"), said("x", "b"), said("yy", "a"))
        await link.say(done("b", usage=USAGE | {"output_tokens": 9}), done("a"))
        await client.hear("response.done")
        await client.hear("response.done")
    assert [one.reading.usage.completion_tokens for one in on.records] == [9, 4]
    assert [one.provider_response_id for one in on.records] == ["b", "a"]


@pytest.mark.parametrize(
    ("status", "outcome"),
    [("cancelled", Outcome.SERVED), ("incomplete", Outcome.SERVED), ("failed", Outcome.UPSTREAM_FAILED)],
)
async def test_a_response_that_ended_otherwise_is_billed_by_its_usage(on: Stage, status: str, outcome: Outcome) -> None:
    async with on.answering() as (client, link):
        await tell(client, link, begun(), said("Drei"), done(status=status))
    record = await on.record()
    assert (record.outcome, record.bills) == (outcome, BillableParts.EVERYTHING)
    assert record.reading.usage.completion_tokens == 4


async def test_a_transcription_is_an_exchange_of_another_model(on: Stage) -> None:
    async with on.talk() as (client, link):
        await tell(client, link, SESSION)
        await ask(client, link)
        await link.say(begun())
        await link.say({"type": f"{TRANSCRIPT}.delta", "item_id": "item_1", "delta": "Was "})
        usage = {"type": "duration", "seconds": 2.5}
        heard = {
            "type": f"{TRANSCRIPT}.completed",
            "item_id": "item_1",
            "transcript": "Was kostet das?",
            "usage": usage,
        }
        await tell(client, link, heard, done())
    transcribed, answered = on.records
    assert (transcribed.opened.model, transcribed.opened.upstream_model, transcribed.opened.endpoint) == (
        EAR, EAR, "/v1/realtime",
    )  # fmt: skip
    assert transcribed.reading.usage == Usage(audio_ms=2500)
    assert (answered.opened.model, answered.reading.usage.completion_tokens) == ("electron", 4)


async def test_a_transcription_counts_against_money_and_not_as_a_request(tmp_path: Path) -> None:
    async with priced_stage(tmp_path) as on, on.talk() as (client, link):
        await tell(client, link, SESSION)
        await link.say(
            {"type": f"{TRANSCRIPT}.completed", "item_id": "i", "transcript": "Was?", "usage": {"seconds": 2}}
        )
        await client.hear()
        ((nusd, _, scopes),) = on.gateway.unlimited.asked
        assert [one.limits for one in scopes] == [Limits(budget_nusd=10**9)]
        assert nusd > 0
        await tell(client, link, begun(), done())
        assert on.gateway.unlimited.asked[1][2] == SCOPES


async def test_an_unknown_event_with_a_usage_is_billed_and_said(on: Stage) -> None:
    async with on.talk() as (client, link):
        await tell(client, link, {"type": "conversation.summary.done", "usage": USAGE})
        await tell(client, link, {"type": "conversation.summary.done", "usage": {}})
    record = await on.record()
    assert (record.reading.usage, record.details["flags"]) == (Usage(3, None, 4, None, 7), ["unknown_event"])
    assert len(on.records) == 1


async def test_an_error_refuses_the_request_that_it_is_about(on: Stage) -> None:
    error = {"type": "error", "error": {"type": "invalid_request_error", "code": "x", "event_id": "mine"}}
    async with on.talk() as (client, link):
        await client.say({"type": "response.create", "event_id": "mine"})
        await link.hear("response.create")
        await link.say(error)
        assert await client.hear() == error
        record = await on.record()
        assert (record.outcome, record.bills) == (Outcome.REFUSED_UPSTREAM, BillableParts.NOTHING)
        assert record.details["upstream_status"] == 400
        await ask(client, link)
        await tell(client, link, begun(), done())
    assert [one.outcome for one in on.records][1:] == [Outcome.SERVED]


async def test_a_request_that_was_taken_for_refused_is_billed_when_it_is_answered(on: Stage) -> None:
    async with on.answering() as (client, link):
        await tell(client, link, {"type": "error", "error": {"type": "server_error", "event_id": None}})
        await tell(client, link, begun(), said("Drei"), done())
    refused, served = on.records
    assert (refused.bills, refused.outcome) == (BillableParts.NOTHING, Outcome.UPSTREAM_FAILED)
    assert (served.bills, served.reading.usage.completion_tokens) == (BillableParts.EVERYTHING, 4)


@pytest.mark.parametrize(
    "hidden",
    [
        '{"type":"response.create","type":"x"}',
        '{"type":"x","type":"response.create"}',
        '{"type":"x","Type":"response.create"}',
        '{"Type":"response.create"}',
        '{"type":"response.create\\u0000"',
        '{"type":"Response.create"}',
        '["response.create"]',
        '"response.create"',
        "[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1),
        '{"type":"session.update","session":{"model":"electron","Model":"dear"}}',
        '{"type":"response.create","response":{"max_output_tokens":1,"Max_Output_Tokens":9}}',
        '{"type":"response.create","response":{"max_output_tokens":NaN}}',
        b' {"type":"x","type":"response.create"}',
        b'\xef\xbb\xbf{"type":"x","Type":"response.create"}',
        "",
    ],
)
async def test_what_two_parsers_could_read_in_two_ways_does_not_go_up(on: Stage, hidden: str | bytes) -> None:
    async with on.talk() as (client, link):
        await client.say(hidden)
        error = await client.hear("error")
        assert error["error"]["message"]
        assert error["error"]["event_id"] is None
        await client.say({"type": "last"})
        await link.hear("last")
        assert link.kinds == [WSMsgType.TEXT], "nothing else came, and the session goes on"
    assert on.gateway.outbox.opened == 0


async def test_a_request_in_a_binary_message_is_a_request(on: Stage) -> None:
    async with on.talk() as (client, link):
        await client.say(b' {"type": "response.create"}')
        await link.hear("response.create")
        assert on.gateway.outbox.opened == 1
        assert link.kinds == [WSMsgType.BINARY]


async def test_a_session_may_change_to_a_model_that_the_key_may_use(on: Stage) -> None:
    named_as(on, "proton", "up-proton")
    async with on.talk() as (client, link):
        for model, code in (("neutron", "model_not_found"), ("electron", None), ("proton", None)):
            await client.say({"type": "session.update", "event_id": "mine", "session": {"model": model}})
            if code is None:
                sent = await link.hear("session.update")
                assert sent["session"]["model"] == {"electron": "electron", "proton": "up-proton"}[model]
            else:
                error = (await client.hear("error"))["error"]
                assert (error["code"], error["event_id"], error["param"]) == (code, "mine", "model")
        await tell(client, link, {"type": "session.updated", "session": {"model": "up-proton"}})
        await ask(client, link)
        await tell(client, link, begun(), done())
        await link.say({"type": "session.updated", "session": {"model": "up-proton-2026"}}, begun("b"), done("b"))
        await client.hear("response.done")
    first, other = on.records
    assert (first.opened.model, first.opened.upstream_model) == ("proton", "up-proton")
    assert (other.opened.model, other.opened.upstream_model) == ("electron", "up-proton-2026"), "priced by what serves"
    assert other.details["served_instead_of"] == "electron"


async def test_a_dated_name_is_the_same_model(on: Stage) -> None:
    async with on.talk() as (client, link):
        await link.say({"type": "session.created", "session": {"model": "electron-2026-08-28"}}, begun(), done())
        await client.hear("response.done")
    assert (await on.record()).opened.upstream_model == "electron"


async def test_a_budget_needs_a_price_of_the_model_that_transcribes(tmp_path: Path) -> None:
    async with stage(tmp_path, keys=Limited()) as on, on.talk() as (client, link):
        update = {"type": "session.update", "session": {"audio": {"input": {"transcription": {"model": EAR}}}}}
        await client.say(update)
        error = (await client.hear("error"))["error"]
        assert error["code"] == "model_unpriced"
        assert EAR in error["message"]
        assert link.kinds == []
    async with priced_stage(tmp_path) as on, on.talk() as (client, link):
        await client.say(update)
        await link.hear("session.update")
