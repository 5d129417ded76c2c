"""Sessions over WebSockets when the proxy dies or stops: each exchange of one ends once, as far as it had come."""

from __future__ import annotations

import asyncio
import base64
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.crash.stage import PATIENCE_S, begin_stopping, entries_of, left_behind, quick_key, told
from tests.gateway.websocket.sockets import CREATE, Client, begun, completed, done, said
from tests.support.socket_provider import Link, SocketProvider
from tests.support.tokenweir import COST, PRICE, Tokenweir, provider_section

pytestmark = pytest.mark.process

EAR = "ear-1"
TRANSCRIPT = "conversation.item.input_audio_transcription"
HEARS = {"model": "any", "audio": {"input": {"transcription": {"model": EAR}}}}


@pytest.fixture
async def speaking() -> AsyncIterator[SocketProvider]:
    async with SocketProvider() as made:
        yield made


@pytest.fixture(params=[{}], ids=["one process"])
def made(tmp_path: Path, speaking: SocketProvider, request: pytest.FixtureRequest) -> Iterator[Tokenweir]:
    """A deployment, not started yet; the parameter: more settings."""
    rates = {"price": PRICE, "cost": COST}
    made = Tokenweir(
        tmp_path,
        providers={"speaking": provider_section(speaking.base_url)},
        models={"*": {"provider": "speaking", **rates}},
        **{"shutdown_grace_s": 3.0, **request.param},
    )
    yield made
    made.close()


class Talk:
    """Clients of one deployment, and the provider's ends of their sessions."""

    def __init__(self, tokenweir: Tokenweir, key: str, speaking: SocketProvider, http: ClientSession) -> None:
        self._tokenweir, self._key, self._speaking, self._http = tokenweir, key, speaking, http
        self._clients: list[Client] = []  # one that nobody holds would be closed

    async def realtime(self, model: str) -> tuple[Client, Link]:
        number = len(self._speaking.links)
        client = await self._connected(f"/v1/realtime?model={model}")
        return client, await self._speaking.link(number)

    async def responses(self, *models: str) -> tuple[Client, Link]:
        """A connection on which a response of each is asked for, in a stream of its own."""
        number = len(self._speaking.links)
        client = await self._connected("/v1/responses")
        for model in models:
            await client.say(CREATE | {"model": model, "stream_id": model})
        link = await self._speaking.link(number)
        await link.until(lambda link: len(link.heard) == len(models))
        return client, link

    async def asked(self, model: str) -> tuple[Client, Link]:
        """A session in which a response runs."""
        client, link = await self.realtime(model)
        await client.say({"type": "response.create"})
        await link.hear("response.create")
        await link.say(begun(), said("Drei Euro und zwanzig Cent."))
        await client.hear("response.output_text.delta")
        return client, link

    async def _connected(self, path: str) -> Client:
        url = self._tokenweir.url.replace("http", "ws", 1) + path
        headers = {"Authorization": f"Bearer {self._key}"}
        client = Client(await self._http.ws_connect(url, headers=headers))
        self._clients.append(client)
        return client

    async def close(self) -> None:
        """Let go of all clients, also of those whose proxy was killed: their connections would be collected, unclosed,
        in another test."""
        for client in self._clients:
            await client.socket.close()


@asynccontextmanager
async def talk(tokenweir: Tokenweir, speaking: SocketProvider) -> AsyncIterator[Talk]:
    key = quick_key(tokenweir)
    tokenweir.start()
    async with ClientSession() as http:
        on = Talk(tokenweir, key, speaking, http)
        yield on
        await on.close()


async def test_each_exchange_of_a_session_is_settled_as_far_as_it_had_come(
    made: Tokenweir, speaking: SocketProvider
) -> None:
    async with talk(made, speaking) as on:
        client, link = await on.asked("whole")
        await link.say(done())
        await client.hear("response.done")
        client, link = await on.asked("spoken")
        sound = base64.b64encode(bytes(96_000)).decode()
        await link.say({"type": "response.output_audio.delta", "response_id": "resp_1", "delta": sound})
        await client.hear("response.output_audio.delta")
        client, link = await on.realtime("unanswered")
        await client.say({"type": "response.create"})
        await link.hear("response.create")
        client, link = await on.realtime("listens")
        await link.say(
            {"type": "session.created", "session": HEARS},
            {"type": f"{TRANSCRIPT}.delta", "item_id": "item_1", "delta": "Was kostet das?"},
        )
        await client.hear(f"{TRANSCRIPT}.delta")
        client, link = await on.responses("left", "right")
        await link.say(
            begun("resp_l", stream_id="left"),
            said("Drei", "resp_l", stream_id="left"),
            begun("resp_r", stream_id="right"),
            said("Vier", "resp_r", stream_id="right"),
            completed("resp_r", stream_id="right"),
        )
        await client.hear("response.completed")
        made.kill()
        assert await client.hear_end() == (None, "")
        for one in speaking.links:
            await one.until_gone()
    made.start()
    names = ("whole", "spoken", "unanswered", EAR, "left", "right")
    found = dict(zip(names, entries_of(made, *names), strict=True))
    outcomes = {name: entry["outcome"] for name, entry in found.items()}
    assert outcomes == {name: "served" if name in ("whole", "right") else "crashed" for name in names}
    for name in ("spoken", EAR, "left"):
        assert found[name]["usage_source"] == "estimated"
        assert found[name]["details"]["recovered"]
        assert Decimal(found[name]["charge_usd"]) > 0, f"{name}: something was delivered"
    assert found["spoken"]["completion_tokens"] >= 40, "two seconds of audio, and text"
    assert Decimal(found["unanswered"]["charge_usd"]) == 0
    assert made.stop() == 0
    assert left_behind(made) == (0, 0, 0)


async def test_what_runs_may_end_and_nothing_new_begins(made: Tokenweir, speaking: SocketProvider) -> None:
    async with talk(made, speaking) as on:
        idle, _ = await on.realtime("idle")
        client, link = await on.asked("running")
        await begin_stopping(made)
        assert (await idle.hear_end())[0] == 1001
        await client.say({"type": "response.create"})
        assert (await client.hear("error"))["error"]["code"] == "shutting_down"
        await link.say(done())
        await client.hear("response.done")
        assert await client.hear_end() == (1001, "The proxy is shutting down.")
        assert await asyncio.to_thread(made._wait, PATIENCE_S) == 0
    assert left_behind(made) == (0, 0, 0)
    (entry,) = entries_of(made, "running")
    assert (entry["outcome"], entry["usage_source"]) == ("served", "reported")


@pytest.mark.parametrize(
    ("made", "again"),
    [pytest.param({}, True, marks=pytest.mark.slow), ({"shutdown_grace_s": 0.3}, False)],
    ids=["a second signal", "after the grace"],
    indirect=["made"],
)
async def test_a_session_that_must_end_is_told_why(again: bool, made: Tokenweir, speaking: SocketProvider) -> None:
    async with talk(made, speaking) as on:
        client, link = await on.asked("cut")
        await begin_stopping(made)
        if again:
            assert made.child is not None
            made.child.send_signal(signal.SIGTERM)
        assert (await client.hear("error"))["error"]["code"] == "shutting_down"
        assert (await client.hear_end())[0] == 1001
        assert await link.until_gone() == (1001, "")
        assert await asyncio.to_thread(made._wait, PATIENCE_S) == 0
    assert left_behind(made) == (0, 0, 0)
    (entry,) = entries_of(made, "cut")
    assert (entry["outcome"], entry["usage_source"]) == ("shut_down", "estimated")
    assert Decimal(entry["charge_usd"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("made", [{"options": ("--workers", "2")}], indirect=True, ids=["two processes"])
async def test_sessions_of_several_processes(made: Tokenweir, speaking: SocketProvider) -> None:
    async with talk(made, speaking) as on:
        talks = [await on.asked(f"fleet-{number}") for number in range(8)]
        for client, link in talks[:4]:
            await link.say(done())
            await client.hear("response.done")
        assert await told(made, signal.SIGTERM) == 0
        for client, _ in talks:
            assert (await client.hear_end())[0] == 1001
    entries: list[dict[str, Any]] = entries_of(made, *(f"fleet-{number}" for number in range(8)))
    assert [entry["outcome"] for entry in entries] == ["served"] * 4 + ["shut_down"] * 4
