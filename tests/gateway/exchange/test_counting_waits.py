"""A record that waits for a count is written once, whatever becomes of the count, and nothing is left behind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from weakref import WeakSet

import pytest

from proxy.demo.script import Send, Stall
from proxy.demo.shapes import DONE, sse
from proxy.gateway.exchange import ending
from proxy.gateway.exchange.exchange import Exchange
from proxy.http.server import wait_until
from proxy.metering.held_text import AnswerText, PromptText, TextRoom
from proxy.metering.profile import Counted, Profile
from proxy.runtime.proxy.tokenizers import OnCounted
from tests.gateway.inprocess import gateway
from tests.gateway.websocket.sockets import CREATE, RESPONSES, begun, completed, said, stage
from tests.support.net import ask, chat_request, connect
from tests.support.provider import ScriptedProvider

pytestmark = pytest.mark.io

EVENTS = [sse({"id": "c", "choices": [{"index": 0, "delta": {"content": text}}]}) for text in ("weirs ", "hold ", "it")]
COUNTED = Counted(Profile(70, 13), Profile(), own=True), Profile(9, 20)


class Counter:
    """Tells when it is let."""

    def __init__(self) -> None:
        self.room = TextRoom(answer_bytes_max=1 << 16, bytes_max=1 << 16)
        self.told: list[OnCounted] = []
        self.is_full = False

    def count(self, held: AnswerText | None, prompt: PromptText | None, on_counted: OnCounted, *, urgent: bool) -> bool:
        if not self.is_full:
            self.told.append(on_counted)
        return not self.is_full


@pytest.fixture
def counter() -> Counter:
    return Counter()


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize(
    ("told", "estimator", "tokens"),
    [(COUNTED, "tokenizer-1", 70), ((None, None), "ridge-2", 4), (None, "ridge-2", 4)],
    ids=["counted", "not counted", "never told"],
)
async def test_the_record_is_written_once(
    tmp_path: Path,
    provider: ScriptedProvider,
    counter: Counter,
    monkeypatch: pytest.MonkeyPatch,
    living: WeakSet[Exchange],
    *,
    leaves: bool,
    told: tuple[Counted | None, Profile | None] | None,
    estimator: str,
    tokens: int,
) -> None:
    monkeypatch.setattr(ending, "COUNT_S", 0.2 if told is None else 60)
    steps = [*map(Send, EVENTS), *([Stall()] if leaves else [Send(DONE)])]
    provider.script("electron", steps)
    async with gateway(tmp_path, provider.base_url, counter=counter, on_client_disconnect="cancel") as made:
        async with await connect(made.url) as client:
            await client.send(chat_request(ask("electron", stream=True)))
            if leaves:
                await client.read_body(await client.read_head(), until=EVENTS[-1])
            else:
                assert (await client.read_body(await client.read_head())).body.endswith(DONE), "it waits for no count"
            if leaves:
                client.close()
            assert await wait_until(lambda: bool(counter.told), deadline_s=10)
            assert len(living) == 1
            if told is not None:
                assert made.outbox.records == []
                counter.told[0](*told)
            assert await wait_until(lambda: bool(made.outbox.records), deadline_s=10)
            counter.told[0](*COUNTED)  # too late, or once more
            counter.told.clear()
        assert await wait_until(lambda: not living, deadline_s=10)
        [record] = made.outbox.records
        assert (record.reading.estimator, record.reading.usage.completion_tokens) == (estimator, tokens)
        assert record.outcome == ("client_left" if leaves else "served")
        assert [one.closed for one in made.unlimited.held] == [1]
        assert counter.room.free == 1 << 16


async def test_without_room_the_counters_speak_at_once(
    tmp_path: Path, provider: ScriptedProvider, counter: Counter
) -> None:
    counter.is_full = True
    provider.script("electron", [*map(Send, EVENTS), Send(DONE)])
    async with gateway(tmp_path, provider.base_url, counter=counter) as made:
        async with await connect(made.url) as client:
            await client.send(chat_request(ask("electron", stream=True)))
            await client.read()
        assert [one.reading.estimator for one in made.outbox.records] == ["ridge-2"]


@pytest.mark.parametrize("told", [COUNTED, None], ids=["counted", "never told"])
async def test_a_session_waits_for_its_records(
    tmp_path: Path, counter: Counter, monkeypatch: pytest.MonkeyPatch, *, told: tuple[Counted, Profile] | None
) -> None:
    monkeypatch.setattr(ending, "COUNT_S", 0.2 if told is None else 60)
    async with stage(tmp_path, counter=counter) as on:
        async with on.client(RESPONSES) as client:
            await client.say(CREATE)
            link = await on.provider.link()
            await link.say(begun(), said("weirs hold it"))
            await client.hear("response.output_text.delta")
            client.abort()
            await on.until(lambda: bool(counter.told))
            assert on.gateway.handler.live, "a proxy that stops waits for it"
            if told is not None:
                assert on.records == []
                counter.told[0](*told)
        record = await on.record()
        assert record.reading.estimator == ("ridge-2" if told is None else "tokenizer-1")
        await on.until_over()
        counter.told.clear()
        assert counter.room.free == 1 << 16


async def test_of_what_goes_on_with_a_conversation_only_the_answer_is_counted(tmp_path: Path, counter: Counter) -> None:
    async with stage(tmp_path, counter=counter) as on, on.client(RESPONSES) as client:
        await client.say(CREATE)
        link = await on.provider.link()
        usage = {"input_tokens": 5000, "output_tokens": 20, "total_tokens": 5020}
        await link.say(begun(), completed(usage=usage))
        await client.hear("response.completed")
        await client.say(CREATE | {"previous_response_id": "resp_1"})
        await link.hear("response.create")
        await link.hear("response.create")
        counter.told.clear()
        await link.say(begun("resp_2"), said("weirs hold it", "resp_2"))
        await client.hear("response.output_text.delta")
        await link.socket.close()
        await on.until(lambda: bool(counter.told))
        counter.told[0](COUNTED[0], None)
        record = await on.record(1)
        assert (record.reading.usage.prompt_tokens or 0) > 5020, "the conversation, and what was asked"
        assert record.reading.usage.completion_tokens == 70


async def test_a_server_that_stops_waits_for_the_record(
    tmp_path: Path, provider: ScriptedProvider, counter: Counter
) -> None:
    provider.script("electron", [*map(Send, EVENTS), Send(DONE)])
    async with gateway(tmp_path, provider.base_url, counter=counter) as made, await connect(made.url) as client:
        await client.send(chat_request(ask("electron", stream=True)))
        assert await wait_until(lambda: bool(counter.told), deadline_s=10)
        asyncio.get_running_loop().call_later(0.3, counter.told[0], *COUNTED)
    assert [one.reading.estimator for one in made.outbox.records] == ["tokenizer-1"]
