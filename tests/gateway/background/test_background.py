"""Answers that are made in the background: each is billed once, by what it came to."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from proxy.billing.record import BillableParts, Outcome
from proxy.gateway.background.polling import Pace
from proxy.gateway.outbox import OutboxFullError
from proxy.http.server import wait_until
from proxy.metering.usage import UsageSource
from proxy.settings import Timeouts
from tests.gateway.inprocess import gateway
from tests.gateway.responses.stage import ASKED as STORED
from tests.gateway.responses.stage import KEYS, QUICK, TOKENS, Stage, stage, tokens
from tests.support.by_hand import asking
from tests.support.clients import Clients, refusal
from tests.support.net import chat_request, post_chat
from tests.support.responses_provider import SECRET, USAGE

pytestmark = pytest.mark.io

ASKED = STORED | {"background": True}
PIECE = " rather more than a little"


async def test_it_is_billed_when_it_has_ended_whoever_asks(on: Stage) -> None:
    made = await on.anna.responses.create(**ASKED)
    assert made.status == "queued"
    await on.polled(made.id)
    assert on.proxy.outbox.records == []
    (live,) = on.proxy.background.live
    shown = live.running()
    assert (shown.state, shown.key_id, shown.exchange_id) == ("background", "anna", live.exchange_id)
    assert on.proxy.handler.owners.key_of(live.exchange_id) == "anna"
    await on.provider.finish(made.id)
    record = await on.record()
    assert (record.outcome, tokens(record), record.reading.source) == (Outcome.SERVED, TOKENS, UsageSource.REPORTED)
    assert (record.provider_response_id, record.finish_reason) == (made.id, "completed")
    assert record.details["polls"] >= 2
    assert {key for _, _, key in on.provider.asked} == {f"Bearer {SECRET}"}, "asked with the provider's key"
    got = await on.anna.responses.retrieve(made.id)
    assert got.output_text == "Much."
    assert (await on.anna.responses.retrieve(made.id)).id == made.id
    assert len(on.proxy.outbox.records) == 1, "reading it costs nothing more"


async def test_who_asks_for_an_ended_answer_makes_it_known(tmp_path: Path, clients: Clients) -> None:
    slow = Pace(first_s=3600.0)
    async with stage(tmp_path, clients, pace=slow) as on:
        made = await on.anna.responses.create(**ASKED)
        await on.provider.finish(made.id)
        assert (await on.anna.responses.retrieve(made.id)).status == "completed"
        assert tokens(await on.record()) == TOKENS
    assert on.provider.polls(made.id) == 1, "by the client"


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_stream_is_the_meter_until_its_client_leaves(on: Stage, leaves: bool) -> None:
    stream = await on.anna.responses.create(**ASKED, stream=True)
    first = await anext(stream)
    assert first.type == "response.created"
    response_id = first.response.id
    await on.provider.say(response_id, "So much")
    assert (await anext(stream)).type == "response.output_text.delta"
    if leaves:
        await stream.close()
        await on.polled(response_id)
        assert await wait_until(lambda: not on.provider.readers, deadline_s=5), "nobody reads on"
        assert on.proxy.outbox.records == []
    await on.provider.finish(response_id)
    if not leaves:
        assert [event.type async for event in stream] == ["response.completed"]
    record = await on.record()
    assert (tokens(record), record.reading.source) == (TOKENS, UsageSource.REPORTED)
    assert record.outcome is (Outcome.CLIENT_LEFT if leaves else Outcome.SERVED)
    assert on.provider.polls(response_id) == 0 or leaves
    await on.anna.responses.delete(response_id)
    assert len(on.proxy.outbox.records) == 1


async def test_who_leaves_at_once_pays_all_the_same(on: Stage) -> None:
    """Before the provider has named its answer: it is waited for."""
    async with on.provider.moved:  # the provider's answer waits for this
        client = await asking(on.proxy.url, chat_request(ASKED, path="/v1/responses", key="anna"))
        assert await wait_until(lambda: bool(on.provider.asked), deadline_s=5, every_s=0.005)
        client.leave()
        await asyncio.sleep(0.05)
    assert await wait_until(lambda: bool(on.proxy.background.live), deadline_s=5, every_s=0.005)
    await on.provider.finish("resp_0000")
    record = await on.record()
    assert (record.outcome, tokens(record), record.bills) == (Outcome.CLIENT_LEFT, TOKENS, BillableParts.EVERYTHING)


@pytest.mark.parametrize(("usage", "source"), [(None, UsageSource.ESTIMATED), (USAGE, UsageSource.REPORTED)])
async def test_a_cancelled_answer_costs_what_it_came_to(on: Stage, usage: Any, source: UsageSource) -> None:
    """Also if the provider does not say: what was read of it, by a second stream, is not free."""
    on.provider.usage_of_cancelled = usage
    made = await on.anna.responses.create(**ASKED)
    stream = await on.anna.responses.retrieve(made.id, stream=True)
    for _ in range(40):
        await on.provider.say(made.id, PIECE)
    for _ in range(41):
        await anext(stream)
    assert (await on.anna.responses.cancel(made.id)).status == "cancelled"
    record = await on.record()
    assert (record.outcome, record.finish_reason, record.reading.source) == (Outcome.SERVED, "cancelled", source)
    assert record.bills is BillableParts.EVERYTHING
    prompt, completion = tokens(record)
    assert prompt
    assert (completion or 0) >= (7 if usage else 150)


async def test_events_that_were_not_repeated_were_generated_too(on: Stage) -> None:
    """Of a stream that goes on in the middle, all before it is estimated."""
    stream = await on.anna.responses.create(**ASKED, stream=True)
    response_id = (await anext(stream)).response.id
    await stream.close()
    for _ in range(40):
        await on.provider.say(response_id, PIECE)
    rest = await on.anna.responses.retrieve(response_id, stream=True, starting_after=30)
    assert len([await anext(rest) for _ in range(10)]) == 10
    await rest.close()
    await on.anna.responses.cancel(response_id)
    _, completion = tokens(await on.record())
    assert (completion or 0) >= 150


async def test_an_answer_is_deleted_when_its_usage_is_known(on: Stage) -> None:
    made = await on.anna.responses.create(**ASKED)
    with refusal(409, match="cancel it first"):
        await on.anna.responses.delete(made.id)
    on.provider.failing = [500] * 1000
    with refusal(500, 502, 503):
        await on.gpt("bert").responses.delete(made.id)
    assert made.id in on.provider.stored
    on.provider.failing.clear()
    await on.provider.finish(made.id)
    await on.gpt("bert").responses.delete(made.id)
    assert made.id not in on.provider.stored
    assert tokens(await on.record()) == TOKENS


async def test_what_was_cancelled_and_deleted_is_settled_at_once(on: Stage) -> None:
    made = await on.anna.responses.create(**ASKED)
    await on.anna.responses.cancel(made.id)
    await on.anna.responses.delete(made.id)
    record = await on.record()
    assert (record.finish_reason, record.bills) == ("cancelled", BillableParts.EVERYTHING)


async def test_what_is_read_counts_while_it_is_read(on: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream of a cancelled answer may stay open."""
    monkeypatch.setattr("proxy.gateway.background.progress_reports.REPORT_S", QUICK.usage_s / 5)
    on.provider.streams_stay = True
    made = await on.anna.responses.create(**ASKED)
    stream = await on.anna.responses.retrieve(made.id, stream=True)
    for _ in range(40):
        await on.provider.say(made.id, PIECE)
        await anext(stream)
    await on.anna.responses.cancel(made.id)
    _, completion = tokens(await on.record())
    await stream.close()
    assert (completion or 0) >= 150


async def test_another_customers_answer_does_not_exist(on: Stage) -> None:
    made = await on.anna.responses.create(**ASKED)
    for ask in (on.gpt("dora").responses.retrieve, on.gpt("dora").responses.cancel, on.gpt("dora").responses.delete):
        with refusal(404):
            await ask(made.id)
    assert on.provider.runs(made.id)


async def test_another_proxy_tells_what_was_read_there(on: Stage, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    async with gateway(tmp_path / "other", on.provider.url, keys=KEYS, store=on.store, pace=QUICK) as other:
        there = on.clients.gpt(other.url)
        made = await on.anna.responses.create(**ASKED)
        for _ in range(40):
            await on.provider.say(made.id, PIECE)
        stream = await there.responses.retrieve(made.id, stream=True)
        assert len([await anext(stream) for _ in range(41)]) == 41
        await there.responses.cancel(made.id)
        _, completion = tokens(await on.record())
        assert (completion or 0) >= 150

        made = await on.anna.responses.create(**ASKED)
        with refusal(409, match="cancel it first"):
            await there.responses.delete(made.id)
        await on.provider.finish(made.id)
        on.store.down = True
        with refusal(500, 502, 503):
            await there.responses.delete(made.id)
        on.store.down = False
        await there.responses.delete(made.id)
        assert await wait_until(lambda: len(on.proxy.outbox.records) == 2, deadline_s=10)
        assert tokens(on.proxy.outbox.records[-1]) == TOKENS
        assert other.outbox.records == []


@pytest.mark.parametrize("failing", [[503, 429, 401, 404, 500], [404]])
async def test_a_provider_that_fails_for_a_while_is_asked_again(on: Stage, failing: list[int]) -> None:
    on.provider.failing = list(failing)
    made = await on.anna.responses.create(**ASKED)
    assert await wait_until(lambda: not on.provider.failing, deadline_s=10, every_s=0.005)
    await on.provider.finish(made.id, "incomplete")
    record = await on.record()
    assert (record.outcome, tokens(record), record.finish_reason) == (Outcome.SERVED, TOKENS, "max_output_tokens")


async def test_what_has_expired_cannot_be_read_any_more(on: Stage) -> None:
    made = await on.anna.responses.create(**ASKED)
    lost = on.provider.stored[made.id]
    await on.provider.lose(made.id)
    record = await on.record()
    assert (record.outcome, record.bills) == (Outcome.UPSTREAM_FAILED, BillableParts.NOTHING)
    assert record.details["failed"] == "background_not_found"
    on.provider.stored[made.id] = lost
    with refusal(404):
        await on.anna.responses.retrieve(made.id)


async def test_what_takes_too_long_is_stopped(tmp_path: Path, clients: Clients) -> None:
    async with stage(tmp_path, clients, timeouts=Timeouts(background_s=0.3)) as on:
        on.provider.usage_of_cancelled = USAGE
        made = await on.anna.responses.create(**ASKED)
        record = await on.record()
        assert (tokens(record), record.finish_reason) == (TOKENS, "cancelled")
        assert on.provider.stored[made.id]["status"] == "cancelled"


async def test_a_provider_that_never_ends_an_answer(tmp_path: Path, clients: Clients) -> None:
    async with stage(tmp_path, clients, timeouts=Timeouts(background_s=0.1)) as on:
        stream = await on.anna.responses.create(**ASKED, stream=True)
        response_id = (await anext(stream)).response.id
        for _ in range(40):
            await on.provider.say(response_id, PIECE)
            await anext(stream)
        on.provider.failing = [500] * 10_000
        await stream.close()
        record = await on.record()
        assert (record.outcome, record.reading.source) == (Outcome.CLIENT_LEFT, UsageSource.ESTIMATED)
        assert record.details["failed"] == "background_too_long"
        _, completion = tokens(record)
        assert (completion or 0) >= 150
        on.provider.failing = []
        with refusal(404):
            await on.anna.responses.retrieve(response_id)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_provider_that_knows_no_background_is_billed_at_once(on: Stage, streamed: bool) -> None:
    on.provider.ignores = True
    if streamed:
        stream = await on.anna.responses.create(**ASKED, stream=True)
        assert [event.type async for event in stream] == ["response.created", "response.completed"]
    else:
        await on.anna.responses.create(**ASKED)
    assert tokens(await on.record()) == TOKENS
    assert on.provider.polls("resp_0000") == 0
    await on.anna.responses.delete("resp_0000")


async def test_who_leaves_a_stream_that_is_not_made_in_the_background(tmp_path: Path, clients: Clients) -> None:
    """The provider says so, though it was asked for: the stream ends with its reader, or is drained."""
    async with stage(tmp_path, clients, on_client_disconnect="drain") as on:
        on.provider.ignores = on.provider.waits = True
        stream = await on.anna.responses.create(**ASKED, stream=True)
        response_id = (await anext(stream)).response.id
        await stream.close()
        assert await wait_until(
            lambda: all(one.running().state == "draining" for one in on.proxy.handler.live), deadline_s=5
        )
        assert not on.proxy.background.live
        await on.provider.finish(response_id)
        record = await on.record()
        assert (record.outcome, tokens(record)) == (Outcome.CLIENT_LEFT, TOKENS)
        assert on.provider.polls(response_id) == 0


async def test_a_budget_that_is_used_up_stops_the_provider(on: Stage) -> None:
    on.provider.usage_of_cancelled = USAGE
    stream = await on.anna.responses.create(**ASKED, stream=True)
    response_id = (await anext(stream)).response.id
    (exchange,) = on.proxy.handler.live
    exchange._ran_short()
    assert "used up" in (await anext(stream)).message
    await stream.close()
    record = await on.record()
    assert (record.outcome, tokens(record), record.finish_reason) == (Outcome.BUDGET_CUT, TOKENS, "cancelled")
    assert on.provider.stored[response_id]["status"] == "cancelled"


async def test_a_full_journal_forgets_nothing_without_a_crash(on: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_opened: object) -> None:
        raise OutboxFullError("full")

    monkeypatch.setattr(on.proxy.outbox, "reassign", full)
    made = await on.anna.responses.create(**ASKED)
    await on.provider.finish(made.id)
    assert tokens(await on.record()) == TOKENS


async def test_a_bug_of_ours_settles_it_by_what_was_seen(on: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await on.anna.responses.create(**ASKED)

    async def broken(_response_id: str) -> bytes:
        raise ZeroDivisionError(" ".join(("an", "answer's", "text")))

    monkeypatch.setattr(on.proxy.owners, "noted", broken)
    record = await on.record()
    assert (record.outcome, record.details["failed"]) == (Outcome.CRASHED, "proxy_bug")
    with refusal(404):
        await on.anna.responses.retrieve(made.id)


@pytest.mark.parametrize(
    ("body", "read"),
    [
        (b'{"id":"resp_x","object":"response","status":"pending"}', (None, None)),
        (b'{"id":"resp_x","object":"response","output":[]}', (None, None)),
        (b'{"job":17}', (None, None)),
        (b"[]", (None, None)),
        (b"", (None, None)),
        (b'{"id":"resp_x","usage":{"input_tokens":11,"output_tokens":7}}', TOKENS),
    ],
)
async def test_an_answer_of_an_unknown_shape_is_settled_once(on: Stage, body: bytes, read: Any) -> None:
    on.provider.instead = body
    got = await post_chat(on.proxy.url, ASKED, path="/v1/responses", key="anna")
    assert got.body == body
    record = await on.record()
    assert (record.outcome, tokens(record)) == (Outcome.UPSTREAM_FAILED, read)


async def test_the_provider_may_make_it_in_the_background_unasked(on: Stage) -> None:
    on.provider.stored["resp_x"] = {"id": "resp_x", "status": "queued", "usage": None, "output": []}
    on.provider.told["resp_x"] = []
    on.provider.instead = b'{"id":"resp_x","object":"response","status":"queued","output":[]}'
    await on.anna.responses.create(model="electron", input="How much?")
    await on.polled("resp_x")
    await on.provider.finish("resp_x")
    assert tokens(await on.record()) == TOKENS


async def test_what_the_client_does_not_store_is_asked_for_too(on: Stage) -> None:
    """OpenAI keeps it for ten minutes. https://developers.openai.com/api/docs/guides/background"""
    made = await on.anna.responses.create(**ASKED, store=False)
    await on.provider.finish(made.id)
    assert (await on.anna.responses.retrieve(made.id)).output_text == "Much."
    assert tokens(await on.record()) == TOKENS
