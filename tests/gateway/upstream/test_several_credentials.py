"""A provider with several credentials, over real sockets: which key arrives, and what is tried after a refusal."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from proxy.billing.record import UsageRecord
from proxy.gateway.upstream import client as providers
from proxy.gateway.upstream import provider_call
from proxy.gateway.upstream.provider_call import Failover
from proxy.gateway.upstream.routing import Route
from proxy.settings import CredentialSettings, ProviderSettings, Secret, Timeouts
from tests.gateway.exchange.alone import request_alone
from tests.gateway.inprocess import Gateway, gateway
from tests.support.net import Response, ask, chat_request, connect, listening, post_chat

pytestmark = pytest.mark.io

USAGE = {"prompt_tokens": 8, "completion_tokens": 5, "total_tokens": 13}
SERVED = json.dumps({"object": "chat.completion", "choices": [], "usage": USAGE}).encode()
REASON = b'{"error":{"message":"the provider\'s own words","code":"own_code"}}'


def head(status: int, body: bytes, more: str = "") -> bytes:
    fields = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{more}"
    return f"HTTP/1.1 {status} X\r\n{fields}\r\n".encode() + body


class Provider:
    """Answers by the key. `refusing`: key → status; `held`: answers wait."""

    def __init__(self) -> None:
        self.refusing: dict[str, bytes] = {}
        self.keys: list[str] = []
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.free = asyncio.Event()
        self.free.set()
        self.url = ""

    def refuses(self, keys: str, status: int, more: str = "") -> None:
        """To each of these keys, of one letter."""
        self.refusing |= dict.fromkeys(keys, head(status, REASON, more))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = (await reader.readuntil(b"\r\n\r\n")).decode()
                fields = dict(line.split(": ", 1) for line in request.split("\r\n")[1:-2])
                assert request.count("Authorization:") == 1
                await reader.readexactly(int(fields["Content-Length"]))
                await self._answer(fields["Authorization"].removeprefix("Bearer sk-"), writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, key: str, writer: asyncio.StreamWriter) -> None:
        self.keys.append(key)
        self.running[key] += 1
        self.most[key] = max(self.most[key], self.running[key])
        try:
            await self.free.wait()
        finally:
            self.running[key] -= 1
        writer.write(self.refusing.get(key) or head(200, SERVED))

    async def until(self, count: int) -> None:
        while len(self.keys) < count:
            await asyncio.sleep(0)


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    made = Provider()
    async with listening(made.serve, backlog=1000) as url:
        made.url = f"{url}/v1"
        yield made


@pytest.fixture(autouse=True)
def in_turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Chances as even as can be."""
    chances = cycle([0.0, 0.5, 0.25, 0.75, 0.125, 0.625, 0.375, 0.875])
    monkeypatch.setattr(provider_call, "random", lambda: next(chances))
    return iter(())


@asynccontextmanager
async def serving(folder: Path, provider: Provider, **limits: dict[str, Any]) -> AsyncIterator[Gateway]:
    """A gateway; no credential is in use in the end."""
    credentials = tuple(
        CredentialSettings(name=name, api_key=Secret(f"sk-{name}"), **one) for name, one in limits.items()
    )
    async with gateway(folder, provider.url, slots=512, credentials=credentials) as made:
        yield made
        assert made.provider.pool is not None
        assert [one._running for one in made.provider.pool.credentials] == [0] * len(limits)


async def one(made: Gateway, **more: Any) -> Response:
    return await post_chat(made.url, ask("electron", stream=False, **more), key="tw-1")


async def many(made: Gateway, count: int) -> list[Response]:
    return await asyncio.gather(*(one(made) for _ in range(count)))


def code(response: Response) -> tuple[int, str]:
    return response.status, json.loads(response.body)["error"]["code"]


def used(records: list[UsageRecord]) -> list[str | None]:
    return [record.details.get("credential") for record in records]


async def test_shares_of_many_requests_and_each_is_in_its_record(tmp_path: Path, provider: Provider) -> None:
    async with serving(tmp_path, provider, a={"weight": 1}, b={"weight": 3}) as made:
        assert {response.status for response in await many(made, 80)} == {200}
        assert Counter(provider.keys) == {"a": 20, "b": 60}
        assert Counter(used(made.outbox.records)) == {"a": 20, "b": 60}
        assert "sk-" not in str(made.outbox.records)


async def test_as_many_at_once_as_the_limits_allow(tmp_path: Path, provider: Provider) -> None:
    provider.free.clear()
    async with serving(tmp_path, provider, a={"parallel": 7}, b={"parallel": 20}) as made:
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(many(made, 60))
            await provider.until(27)
            while len(made.outbox.records) < 33:  # those that were refused
                await asyncio.sleep(0)
            provider.free.set()
        responses = asking.result()
        assert provider.most == {"a": 7, "b": 20}
        refused = [response for response in responses if response.status != 200]
        assert {code(response) for response in refused} == {(429, "upstream_limited")}
        assert {response.header("Retry-After") for response in refused} == {"1"}
        assert len(refused) == 33
        # And again, now that all have ended.
        assert {response.status for response in await many(made, 27)} == {200}
        assert provider.most == {"a": 7, "b": 20}


async def test_as_many_in_a_minute_as_the_limits_allow(tmp_path: Path, provider: Provider) -> None:
    async with serving(tmp_path, provider, a={"rpm": 3}, b={"rpm": 5}) as made:
        responses = await many(made, 30)
        assert Counter(provider.keys) == {"a": 3, "b": 5}
        refused = [response for response in responses if response.status != 200]
        assert {code(response) for response in refused} == {(429, "upstream_limited")}
        assert all(55 <= int(response.header("Retry-After") or 0) <= 61 for response in refused)
        outcomes = Counter(record.details.get("failed") for record in made.outbox.records)
        assert outcomes == {None: 8, "no credential: all at their limits": 22}


async def test_tokens_of_a_minute(tmp_path: Path, provider: Provider) -> None:
    """What an answer has used counts, not what was reserved for it."""
    async with serving(tmp_path, provider, a={"tpm": 1_000}) as made:
        statuses = [(await one(made, max_tokens=600)).status for _ in range(3)]
        assert statuses == [200] * 3, "13 tokens each"
        provider.free.clear()
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(one(made, max_tokens=600))
            await provider.until(4)
            assert code(await one(made, max_tokens=600)) == (429, "upstream_limited")
            provider.free.set()
        assert asking.result().status == 200


@pytest.mark.parametrize(("status", "more"), [(429, "Retry-After: 7\r\n"), (401, ""), (403, "")])
async def test_a_refused_credential_rests_and_another_serves(
    tmp_path: Path, provider: Provider, status: int, more: str, caplog: pytest.LogCaptureFixture
) -> None:
    provider.refuses("a", status, more)
    async with serving(tmp_path, provider, a={}, b={}) as made:
        assert {response.status for response in [await one(made) for _ in range(6)]} == {200}
        assert provider.keys == ["a", "b"] + ["b"] * 5
        assert used(made.outbox.records) == ["b"] * 6
        assert {len(record.opened.attempts) for record in made.outbox.records} == {0}
        assert made.provider.health.away_s(monotonic()) == 0, "the provider itself is well"
    named = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    rejected = f"credential a of provider scripted: the provider rejects it ({status}); other credentials are used"
    assert named == ([] if status == 429 else [rejected])


async def test_a_429_without_a_time_is_tried_elsewhere_and_rests_a_second(tmp_path: Path, provider: Provider) -> None:
    provider.refuses("a", 429)
    async with serving(tmp_path, provider, a={}, b={}) as made:
        assert {response.status for response in [await one(made) for _ in range(4)]} == {200}
        assert Counter(provider.keys)["a"] <= 2, "it may have been asked again a second later"


async def test_all_are_limited(tmp_path: Path, provider: Provider) -> None:
    """The first gets the provider's own words; the next ones ours, and the provider is left alone."""
    provider.refuses("ab", 429, "Retry-After: 7\r\n")
    async with serving(tmp_path, provider, a={}, b={}) as made:
        first, second = await one(made), await one(made)
        assert code(first) == (429, "own_code")
        assert code(second) == (429, "upstream_limited")
        assert second.header("Retry-After") in ("6", "7")
        assert provider.keys == ["a", "b"]
        assert used(made.outbox.records) == ["b", None]


async def test_all_are_rejected(tmp_path: Path, provider: Provider, caplog: pytest.LogCaptureFixture) -> None:
    provider.refuses("ab", 401)
    async with serving(tmp_path, provider, a={}, b={}) as made:
        answers = [await one(made) for _ in range(3)]
        assert {code(response) for response in answers} == {(502, "upstream_auth")}
        assert provider.keys == ["a", "b"]
    named = [record.getMessage().split(":")[0] for record in caplog.records if record.levelno >= logging.WARNING]
    assert named == ["credential a of provider scripted", "credential b of provider scripted"]
    assert "sk-" not in caplog.text


async def test_a_403_to_all_of_them_is_about_the_request(tmp_path: Path, provider: Provider) -> None:
    """A client could make all of them rest otherwise."""
    provider.refuses("ab", 403)
    async with serving(tmp_path, provider, a={}, b={}) as made:
        for _ in range(3):
            assert code(await one(made)) == (403, "own_code")
        assert Counter(provider.keys) == {"a": 3, "b": 3}
        provider.refusing.clear()
        assert (await one(made)).status == 200


async def test_a_key_in_a_refusal_is_not_passed_on(tmp_path: Path, provider: Provider) -> None:
    for key in "ab":
        provider.refusing[key] = head(400, f'{{"error":"sk-{key} may not"}}'.encode())
    async with serving(tmp_path, provider, a={}, b={}) as made:
        for _ in range(4):
            assert code(await one(made)) == (502, "upstream_failed")
    assert set(provider.keys) == {"a", "b"}


async def test_who_leaves_gives_the_credential_back(tmp_path: Path, provider: Provider) -> None:
    provider.free.clear()
    async with serving(tmp_path, provider, a={"parallel": 1}) as made:
        for count in (1, 2):
            async with await connect(made.url) as client:
                await client.send(chat_request(ask("electron", stream=False), key="tw-1"))
                await provider.until(count)
            while len(made.outbox.records) < count:
                await asyncio.sleep(0)
        provider.free.set()
        assert (await one(made)).status == 200


async def test_where_no_credential_is_left_another_provider_is_asked() -> None:
    """As a line of the exchange: nothing was sent."""
    asked: list[str] = []

    class Upstream:
        async def ask(self, provider: Any, wire: bytes) -> Any:
            asked.append(provider.settings.name)
            return SimpleNamespace(status=200)

    limited = (CredentialSettings(name="a", api_key=Secret("sk-a"), rpm=1),)
    first, second = (
        Route(
            providers.Provider.of(
                ProviderSettings(
                    name=name,
                    base_url="http://provider.test/v1",
                    credentials=credentials,
                    timeouts=Timeouts(first_event_s=0),
                ),
                write_stall_s=60,
            ),
            "m",
            lambda *_: (None, None),
        )
        for name, credentials in (("first", limited), ("second", ()))
    )
    for _ in range(2):
        asking = request_alone(Upstream(), replace(first, others=(second,)))
        found = await asking.ask()
    assert isinstance(found, Failover)
    assert (found.attempt.provider, found.attempt.failed) == ("first", "no credential: all at their limits")
    assert found.attempt.status is None
    asking.fail_over(found)
    await asking.ask()
    assert asked == ["first", "second"]
    assert asking.use is None
