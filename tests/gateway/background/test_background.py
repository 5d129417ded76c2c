"""Answers that are made in the background, with OpenAI's own SDK: each is billed once, by what it came to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.billing.record import BillableParts, Outcome, UsageRecord
from proxy.foundation.secret import Secret
from proxy.gateway.background.polling import Pace
from proxy.gateway.outbox import OutboxFullError
from proxy.http.server import wait_until
from proxy.metering.usage import UsageSource
from proxy.settings import Timeouts
from tests.gateway.inprocess import KEY, Gateway, OfToken, OwnersInMemory, gateway
from tests.support.responses_provider import SECRET, USAGE, ResponsesProvider, responses_provider
from tests.support.sdks import openai

pytestmark = pytest.mark.io

# Asked for every few hundredths of a second.
QUICK = Pace(first_s=0.02, pause_s_max=0.05, usage_s=0.05, gone_s=0.2, stopping_s=0.2)
TEAM = replace(KEY, project_id="proj_team")
KEYS = OfToken(anna=replace(TEAM, key_id="anna"), bert=replace(TEAM, key_id="bert"), dora=replace(KEY, key_id="dora"))
TOKENS = (USAGE["input_tokens"], USAGE["output_tokens"])
ASKED: dict[str, Any] = {"model": "electron", "input": "How much?", "background": True}


@pytest.fixture
async def provider() -> AsyncIterator[ResponsesProvider]:
    async with responses_provider() as made:
        yield made


@pytest.fixture
def store() -> OwnersInMemory:
    return OwnersInMemory()


@pytest.fixture
async def proxy(provider: ResponsesProvider, store: OwnersInMemory, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with gateway(tmp_path, provider.url, keys=KEYS, store=store, pace=QUICK, api_key=Secret(SECRET)) as made:
        yield made


@pytest.fixture
async def http() -> AsyncIterator[openai.DefaultAsyncHttpxClient]:
    async with openai.DefaultAsyncHttpxClient(verify=False, trust_env=False) as made:
        yield made


@pytest.fixture
def sdk(proxy: Gateway, http: openai.DefaultAsyncHttpxClient) -> Callable[[str], openai.AsyncOpenAI]:
    """The SDK with this key."""
    return lambda key: openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key=key, max_retries=0, http_client=http)


@pytest.fixture
def anna(sdk: Callable[[str], openai.AsyncOpenAI]) -> openai.AsyncOpenAI:
    return sdk("anna")


async def the_record(proxy: Gateway) -> UsageRecord:
    """The one record of the one exchange, once it is there; everything is let go of."""
    assert await wait_until(lambda: not proxy.background.live and not proxy.handler.live, deadline_s=10, every_s=0.005)
    (record,) = proxy.outbox.records
    (held,) = proxy.unlimited.held
    assert held.closed == 1
    return record


def tokens(record: UsageRecord) -> tuple[int | None, int | None]:
    return record.reading.usage.prompt_tokens, record.reading.usage.completion_tokens


async def polled(provider: ResponsesProvider, response_id: str, times: int = 2) -> None:
    """It was asked for so often, from now on."""
    wanted = provider.polls(response_id) + times
    assert await wait_until(lambda: provider.polls(response_id) >= wanted, deadline_s=10, every_s=0.005)


async def test_it_is_billed_when_it_has_ended_whoever_asks(
    provider: ResponsesProvider, proxy: Gateway, anna: openai.AsyncOpenAI
) -> None:
    made = await anna.responses.create(**ASKED)
    assert made.status == "queued"
    await polled(provider, made.id)
    assert proxy.outbox.records == []
    (live,) = proxy.background.live
    shown = live.running()
    assert (shown.state, shown.key_id, shown.exchange_id) == ("background", "anna", live.exchange_id)
    assert proxy.handler.owners.key_of(live.exchange_id) == "anna"
    await provider.finish(made.id)
    record = await the_record(proxy)
    assert (record.outcome, tokens(record), record.reading.source) == (Outcome.SERVED, TOKENS, UsageSource.REPORTED)
    assert (record.provider_response_id, record.finish_reason) == (made.id, "completed")
    assert record.details["polls"] >= 2
    assert {key for _, _, key in provider.asked} == {f"Bearer {SECRET}"}, "asked with the provider's key"
    got = await anna.responses.retrieve(made.id)
    assert got.output_text == "Much."
    assert (await anna.responses.retrieve(made.id)).id == made.id
    assert len(proxy.outbox.records) == 1, "reading it costs nothing more"


async def test_who_asks_for_an_ended_answer_makes_it_known(
    provider: ResponsesProvider, store: OwnersInMemory, tmp_path: Path, http: openai.DefaultAsyncHttpxClient
) -> None:
    slow = Pace(first_s=3600.0)
    async with gateway(tmp_path, provider.url, keys=KEYS, store=store, pace=slow) as proxy:
        client = openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="anna", max_retries=0, http_client=http)
        made = await client.responses.create(**ASKED)
        await provider.finish(made.id)
        assert (await client.responses.retrieve(made.id)).status == "completed"
        assert tokens(await the_record(proxy)) == TOKENS
    assert provider.polls(made.id) == 1, "by the client"


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_stream_is_the_meter_until_its_client_leaves(
    provider: ResponsesProvider, proxy: Gateway, anna: openai.AsyncOpenAI, leaves: bool
) -> None:
    stream = await anna.responses.create(**ASKED, stream=True)
    first = await anext(stream)
    assert first.type == "response.created"
    response_id = first.response.id
    await provider.say(response_id, "So much")
    assert (await anext(stream)).type == "response.output_text.delta"
    if leaves:
        await stream.close()
        await polled(provider, response_id)
        assert await wait_until(lambda: not provider.readers, deadline_s=5), "nobody reads on"
        assert proxy.outbox.records == []
    await provider.finish(response_id)
    if not leaves:
        assert [event.type async for event in stream] == ["response.completed"]
    record = await the_record(proxy)
    assert (tokens(record), record.reading.source) == (TOKENS, UsageSource.REPORTED)
    assert record.outcome is (Outcome.CLIENT_LEFT if leaves else Outcome.SERVED)
    assert provider.polls(response_id) == 0 or leaves
    await anna.responses.delete(response_id)
    assert len(proxy.outbox.records) == 1


async def test_who_leaves_at_once_pays_all_the_same(provider: ResponsesProvider, proxy: Gateway) -> None:
    """Before the provider has named its answer: it is waited for."""
    body = b'{"model":"electron","input":"How much?","background":true}'
    head = (
        f"POST /v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer anna\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    async with provider.moved:  # the provider's answer waits for this
        _, writer = await asyncio.open_connection("127.0.0.1", int(proxy.url.rpartition(":")[2]))
        writer.write(head.encode() + body)
        assert await wait_until(lambda: bool(provider.asked), deadline_s=5, every_s=0.005)
        writer.transport.abort()
        await asyncio.sleep(0.05)
    assert await wait_until(lambda: bool(proxy.background.live), deadline_s=5, every_s=0.005)
    await provider.finish("resp_0000")
    record = await the_record(proxy)
    assert (record.outcome, tokens(record), record.bills) == (Outcome.CLIENT_LEFT, TOKENS, BillableParts.EVERYTHING)


@pytest.mark.parametrize(("usage", "source"), [(None, UsageSource.ESTIMATED), (USAGE, UsageSource.REPORTED)])
async def test_a_cancelled_answer_costs_what_it_came_to(
    provider: ResponsesProvider, proxy: Gateway, anna: openai.AsyncOpenAI, usage: Any, source: UsageSource
) -> None:
    """Also if the provider does not say: what was read of it, by a second stream, is not free."""
    provider.usage_of_cancelled = usage
    made = await anna.responses.create(**ASKED)
    stream = await anna.responses.retrieve(made.id, stream=True)
    for _ in range(40):
        await provider.say(made.id, " rather more than a little")
    for _ in range(41):
        await anext(stream)
    assert (await anna.responses.cancel(made.id)).status == "cancelled"
    record = await the_record(proxy)
    assert (record.outcome, record.finish_reason, record.reading.source) == (Outcome.SERVED, "cancelled", source)
    assert record.bills is BillableParts.EVERYTHING
    prompt, completion = tokens(record)
    assert prompt
    assert completion is not None
    assert completion >= (7 if usage else 150)


async def test_events_that_were_not_repeated_were_generated_too(
    provider: ResponsesProvider, proxy: Gateway, anna: openai.AsyncOpenAI
) -> None:
    """Of a stream that goes on in the middle, all before it is estimated."""
    stream = await anna.responses.create(**ASKED, stream=True)
    response_id = (await anext(stream)).response.id
    await stream.close()
    for _ in range(40):
        await provider.say(response_id, " rather more than a little")
    rest = await anna.responses.retrieve(response_id, stream=True, starting_after=30)
    assert len([await anext(rest) for _ in range(10)]) == 10
    await rest.close()
    await anna.responses.cancel(response_id)
    _, completion = tokens(await the_record(proxy))
    assert completion is not None
    assert completion >= 150


async def test_an_answer_is_deleted_when_its_usage_is_known(
    provider: ResponsesProvider, proxy: Gateway, anna: openai.AsyncOpenAI, sdk: Callable[[str], openai.AsyncOpenAI]
) -> None:
    made = await anna.responses.create(**ASKED)
    with pytest.raises(openai.ConflictError, match="cancel it first"):
        await anna.responses.delete(made.id)
    provider.failing = [500] * 1000
    with pytest.raises(openai.InternalServerError):
        await sdk("bert").responses.delete(made.id)
    assert made.id in provider.stored
    provider.failing.clear()
    await provider.finish(made.id)
    await sdk("bert").responses.delete(made.id)
    assert made.id not in provider.stored
    assert tokens(await the_record(proxy)) == TOKENS


async def test_what_was_cancelled_and_deleted_is_settled_at_once(
    provider: ResponsesProvider, tmp_path: Path, http: openai.DefaultAsyncHttpxClient
) -> None:
    async with gateway(tmp_path, provider.url, keys=KEYS, pace=QUICK) as proxy:
        client = openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="anna", max_retries=0, http_client=http)
        made = await client.responses.create(**ASKED)
        await client.responses.cancel(made.id)
        await client.responses.delete(made.id)
        record = await the_record(proxy)
        assert (record.finish_reason, record.bills) == ("cancelled", BillableParts.EVERYTHING)


async def test_what_is_read_counts_while_it_is_read(
    provider: ResponsesProvider, proxy: Gateway, anna: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream of a cancelled answer may stay open."""
    monkeypatch.setattr("proxy.gateway.background.progress_reports.REPORT_S", QUICK.usage_s / 5)
    provider.streams_stay = True
    made = await anna.responses.create(**ASKED)
    stream = await anna.responses.retrieve(made.id, stream=True)
    for _ in range(40):
        await provider.say(made.id, " rather more than a little")
        await anext(stream)
    await anna.responses.cancel(made.id)
    _, completion = tokens(await the_record(proxy))
    await stream.close()
    assert completion is not None
    assert completion >= 150


async def test_another_customers_answer_does_not_exist(
    provider: ResponsesProvider, proxy: Gateway, anna: openai.AsyncOpenAI, sdk: Callable[[str], openai.AsyncOpenAI]
) -> None:
    made = await anna.responses.create(**ASKED)
    for ask in (sdk("dora").responses.retrieve, sdk("dora").responses.cancel, sdk("dora").responses.delete):
        with pytest.raises(openai.NotFoundError):
            await ask(made.id)
    assert provider.runs(made.id)


async def test_another_proxy_tells_what_was_read_there(
    provider: ResponsesProvider,
    proxy: Gateway,
    store: OwnersInMemory,
    anna: openai.AsyncOpenAI,
    tmp_path: Path,
) -> None:
    (tmp_path / "other").mkdir()
    async with gateway(tmp_path / "other", provider.url, keys=KEYS, store=store, pace=QUICK) as other:
        there = anna.with_options(base_url=f"{other.url}/v1")
        made = await anna.responses.create(**ASKED)
        for _ in range(40):
            await provider.say(made.id, " rather more than a little")
        stream = await there.responses.retrieve(made.id, stream=True)
        assert len([await anext(stream) for _ in range(41)]) == 41
        await there.responses.cancel(made.id)
        _, completion = tokens(await the_record(proxy))
        assert completion is not None
        assert completion >= 150

        made = await anna.responses.create(**ASKED)
        with pytest.raises(openai.ConflictError, match="cancel it first"):
            await there.responses.delete(made.id)
        await provider.finish(made.id)
        store.down = True
        with pytest.raises(openai.InternalServerError):
            await there.responses.delete(made.id)
        store.down = False
        await there.responses.delete(made.id)
        assert await wait_until(lambda: len(proxy.outbox.records) == 2, deadline_s=10)
        assert tokens(proxy.outbox.records[-1]) == TOKENS
        assert other.outbox.records == []


@pytest.mark.parametrize("failing", [[503, 429, 401, 404, 500], [404]])
async def test_a_provider_that_fails_for_a_while_is_asked_again(
    provider: ResponsesProvider, proxy: Gateway, anna: openai.AsyncOpenAI, failing: list[int]
) -> None:
    provider.failing = list(failing)
    made = await anna.responses.create(**ASKED)
    assert await wait_until(lambda: not provider.failing, deadline_s=10, every_s=0.005)
    await provider.finish(made.id, "incomplete")
    record = await the_record(proxy)
    assert (record.outcome, tokens(record), record.finish_reason) == (Outcome.SERVED, TOKENS, "max_output_tokens")


async def test_what_has_expired_cannot_be_read_any_more(
    provider: ResponsesProvider, proxy: Gateway, anna: openai.AsyncOpenAI
) -> None:
    made = await anna.responses.create(**ASKED)
    lost = provider.stored[made.id]
    await provider.lose(made.id)
    record = await the_record(proxy)
    assert (record.outcome, record.bills) == (Outcome.UPSTREAM_FAILED, BillableParts.NOTHING)
    assert record.details["failed"] == "background_not_found"
    provider.stored[made.id] = lost
    with pytest.raises(openai.NotFoundError):
        await anna.responses.retrieve(made.id)


async def test_what_takes_too_long_is_stopped(
    provider: ResponsesProvider, tmp_path: Path, http: openai.DefaultAsyncHttpxClient
) -> None:
    async with gateway(tmp_path, provider.url, keys=KEYS, pace=QUICK, timeouts=Timeouts(background_s=0.3)) as proxy:
        client = openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="anna", max_retries=0, http_client=http)
        provider.usage_of_cancelled = USAGE
        made = await client.responses.create(**ASKED)
        record = await the_record(proxy)
        assert (tokens(record), record.finish_reason) == (TOKENS, "cancelled")
        assert provider.stored[made.id]["status"] == "cancelled"


async def test_a_provider_that_never_ends_an_answer(
    provider: ResponsesProvider, tmp_path: Path, http: openai.DefaultAsyncHttpxClient
) -> None:
    async with gateway(tmp_path, provider.url, keys=KEYS, pace=QUICK, timeouts=Timeouts(background_s=0.1)) as proxy:
        client = openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="anna", max_retries=0, http_client=http)
        stream = await client.responses.create(**ASKED, stream=True)
        response_id = (await anext(stream)).response.id
        for _ in range(40):
            await provider.say(response_id, " rather more than a little")
            await anext(stream)
        provider.failing = [500] * 10_000
        await stream.close()
        record = await the_record(proxy)
        assert (record.outcome, record.reading.source) == (Outcome.CLIENT_LEFT, UsageSource.ESTIMATED)
        assert record.details["failed"] == "background_too_long"
        _, completion = tokens(record)
        assert completion is not None
        assert completion >= 150
        provider.failing = []
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(response_id)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_provider_that_knows_no_background_is_billed_at_once(
    provider: ResponsesProvider, proxy: Gateway, anna: openai.AsyncOpenAI, streamed: bool
) -> None:
    provider.ignores = True
    if streamed:
        stream = await anna.responses.create(**ASKED, stream=True)
        assert [event.type async for event in stream] == ["response.created", "response.completed"]
    else:
        await anna.responses.create(**ASKED)
    assert tokens(await the_record(proxy)) == TOKENS
    assert provider.polls("resp_0000") == 0
    await anna.responses.delete("resp_0000")


async def test_who_leaves_a_stream_that_is_not_made_in_the_background(
    provider: ResponsesProvider, tmp_path: Path, http: openai.DefaultAsyncHttpxClient
) -> None:
    """The provider says so, though it was asked for: the stream ends with its reader, or is drained."""
    provider.ignores = provider.waits = True
    async with gateway(tmp_path, provider.url, keys=KEYS, pace=QUICK, on_client_disconnect="drain") as proxy:
        client = openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="anna", max_retries=0, http_client=http)
        stream = await client.responses.create(**ASKED, stream=True)
        response_id = (await anext(stream)).response.id
        await stream.close()
        assert await wait_until(
            lambda: all(one.running().state == "draining" for one in proxy.handler.live), deadline_s=5
        )
        assert not proxy.background.live
        await provider.finish(response_id)
        record = await the_record(proxy)
        assert (record.outcome, tokens(record)) == (Outcome.CLIENT_LEFT, TOKENS)
        assert provider.polls(response_id) == 0


async def test_a_budget_that_is_used_up_stops_the_provider(
    provider: ResponsesProvider, proxy: Gateway, anna: openai.AsyncOpenAI
) -> None:
    provider.usage_of_cancelled = USAGE
    stream = await anna.responses.create(**ASKED, stream=True)
    response_id = (await anext(stream)).response.id
    (exchange,) = proxy.handler.live
    exchange._ran_short()
    assert "used up" in (await anext(stream)).message
    await stream.close()
    record = await the_record(proxy)
    assert (record.outcome, tokens(record), record.finish_reason) == (Outcome.BUDGET_CUT, TOKENS, "cancelled")
    assert provider.stored[response_id]["status"] == "cancelled"


async def test_a_full_journal_forgets_nothing_without_a_crash(
    provider: ResponsesProvider, proxy: Gateway, anna: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_opened: object) -> None:
        raise OutboxFullError("full")

    monkeypatch.setattr(proxy.outbox, "reassign", full)
    made = await anna.responses.create(**ASKED)
    await provider.finish(made.id)
    assert tokens(await the_record(proxy)) == TOKENS


async def test_a_bug_of_ours_settles_it_by_what_was_seen(
    provider: ResponsesProvider, proxy: Gateway, anna: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await anna.responses.create(**ASKED)

    async def broken(_response_id: str) -> bytes:
        raise ZeroDivisionError(" ".join(("an", "answer's", "text")))

    monkeypatch.setattr(proxy.owners, "noted", broken)
    record = await the_record(proxy)
    assert (record.outcome, record.details["failed"]) == (Outcome.CRASHED, "proxy_bug")
    with pytest.raises(openai.NotFoundError):
        await anna.responses.retrieve(made.id)


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
async def test_an_answer_of_an_unknown_shape_is_settled_once(
    provider: ResponsesProvider,
    proxy: Gateway,
    anna: openai.AsyncOpenAI,
    body: bytes,
    read: tuple[int | None, int | None],
) -> None:
    provider.instead = body
    got = await anna.with_raw_response.responses.create(**ASKED)
    assert got.http_response.content == body
    record = await the_record(proxy)
    assert (record.outcome, tokens(record)) == (Outcome.UPSTREAM_FAILED, read)


async def test_the_provider_may_make_it_in_the_background_unasked(
    provider: ResponsesProvider, proxy: Gateway, anna: openai.AsyncOpenAI
) -> None:
    provider.stored["resp_x"] = {"id": "resp_x", "status": "queued", "usage": None, "output": []}
    provider.told["resp_x"] = []
    provider.instead = b'{"id":"resp_x","object":"response","status":"queued","output":[]}'
    await anna.responses.create(model="electron", input="How much?")
    await polled(provider, "resp_x")
    await provider.finish("resp_x")
    assert tokens(await the_record(proxy)) == TOKENS


async def test_what_the_client_does_not_store_is_asked_for_too(
    provider: ResponsesProvider, proxy: Gateway, anna: openai.AsyncOpenAI
) -> None:
    """OpenAI keeps it for ten minutes. https://developers.openai.com/api/docs/guides/background"""
    made = await anna.responses.create(**ASKED, store=False)
    await provider.finish(made.id)
    assert (await anna.responses.retrieve(made.id)).output_text == "Much."
    assert tokens(await the_record(proxy)) == TOKENS
