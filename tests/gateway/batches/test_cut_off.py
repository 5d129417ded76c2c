"""What is left when a process is gone in the middle: a batch is found, settled once, or known not to be made."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from proxy.billing.batch import BatchState
from proxy.gateway.batches import settling
from tests.gateway.batches.asking import (
    CHAT,
    LINE_NUSD,
    ended,
    line,
    lines_of,
    made,
    made_by,
    ordered,
    own_entries,
    request,
    stored,
    uploaded,
)
from tests.gateway.batches.site import Proxy, Site
from tests.support.batch_provider import BatchProvider
from tests.support.clients import Claude, Gpt, refusal

pytestmark = pytest.mark.io


class Broken(web.StreamResponse):
    """Two thirds of a body, and then the end of the connection."""

    def __init__(self, content: bytes) -> None:
        super().__init__(headers={"Content-Length": str(len(content))})
        self._content = content

    async def prepare(self, request: web.BaseRequest) -> Any:
        writer = await super().prepare(request)
        await self.write(self._content[: 2 * len(self._content) // 3])
        assert request.transport is not None
        request.transport.close()
        return writer


@pytest.fixture(autouse=True)
def now(provider: BatchProvider) -> None:
    """The provider's clock is ours."""
    provider.clock = time.time


async def cut(at: Site, proxy: Proxy, asking: Any, make: Callable[[], Any] = lambda: None) -> Proxy:
    """The process dies while it waits for the answer; another run of it begins. `make`: makes the batch."""
    reached = at.provider.when_one_is_made(make)
    task = asyncio.ensure_future(asking)  # noqa: TID251  awaited below
    await reached.wait()
    await proxy.drop()
    with pytest.raises(Exception):  # noqa: B017  whatever the SDK makes of it
        await task
    at.provider.before = None
    return await at.start()


async def test_a_batch_that_was_made_is_found_by_its_file(at: Site, proxy: Proxy, gpt: Gpt) -> None:
    file_id = await uploaded(gpt(), line("a"))
    stranger = at.provider.make_openai({"input_file_id": file_id, "endpoint": "x"})
    at.provider.batches[stranger["id"]]["input_file_id"] = "file-of-another"
    order = {"input_file_id": file_id, "endpoint": CHAT}
    again = await cut(at, proxy, ordered(gpt(), file_id), lambda: at.provider.make_openai(order))
    assert len(at.budget.held) == 1
    (batch_id,) = set(at.provider.batches) - {stranger["id"]}
    client = gpt("anna", again.url)
    assert [one.id async for one in client.batches.list()] == []
    assert await again.watcher.look() == 1
    assert [one.id async for one in client.batches.list()] == [batch_id], "it is the client's"
    at.provider.end(batch_id)
    await at.look(again, 60.0)
    assert [one.charge_nusd for one in lines_of(at)] == [LINE_NUSD]
    assert len(own_entries(at)) == 1


async def test_a_batch_that_was_not_made_is_forgotten(at: Site, proxy: Proxy, gpt: Gpt) -> None:
    file_id = await uploaded(gpt(), line("a"))
    again = await cut(at, proxy, ordered(gpt(), file_id))
    assert await again.watcher.look() == 1
    assert at.entries() == []
    assert await at.look(again, 700.0) == 1
    (own,) = at.entries()
    assert (own.outcome, own.charge_nusd) == ("upstream_failed", 0)
    assert at.batches.of_exchange(own.exchange_id) is None


async def test_anthropics_batch_is_found_by_its_lines(at: Site, proxy: Proxy, claude: Claude) -> None:
    asking = made_by(claude(), request("a"), request("b"))
    again = await cut(at, proxy, asking, lambda: at.provider.make_anthropic([request("b"), request("a")]))
    (batch_id,) = at.provider.batches
    await again.watcher.look()
    client = claude("anna", again.url)
    assert [one.id async for one in client.messages.batches.list()] == [], "it may be another's"
    at.provider.end(batch_id)
    for at.later_s in (60.0, 120.0):
        await again.watcher.look()
    assert len(lines_of(at)) == 2
    assert [one.id async for one in client.messages.batches.list()] == [batch_id]
    assert len([one async for one in await client.messages.batches.results(batch_id)]) == 2


async def test_a_strangers_batch_is_never_shown(at: Site, proxy: Proxy, claude: Claude) -> None:
    again = await cut(at, proxy, made_by(claude(), request("a")))
    batch_id = at.provider.make_anthropic([request("of another")])["id"]
    await again.watcher.look()
    at.provider.end(batch_id)
    for at.later_s in (60.0, 700.0):
        await again.watcher.look()
    assert lines_of(at) == []
    client = claude("anna", again.url)
    assert [one.id async for one in client.messages.batches.list()] == []
    with pytest.raises(Exception, match="No such batch"):
        await client.messages.batches.retrieve(batch_id)
    (own,) = own_entries(at)
    assert own.charge_nusd == 0


async def test_of_two_with_the_same_names_it_is_none(at: Site, proxy: Proxy, claude: Claude) -> None:
    again = await cut(at, proxy, made_by(claude(), request("a")))
    for _ in range(2):
        at.provider.end(at.provider.make_anthropic([request("a")])["id"])
    for at.later_s in (0.0, 3 * 86_400.0):
        await again.watcher.look()
    assert lines_of(at) == []
    (own,) = own_entries(at)
    found = at.batches.of_exchange(own.exchange_id)
    assert found is not None
    assert (found.state, found.batch_id) == (BatchState.LOST, None)


async def test_an_answer_that_breaks_off_is_looked_for(at: Site, proxy: Proxy, gpt: Gpt) -> None:
    file_id = await uploaded(gpt(), line("a"))
    order = {"input_file_id": file_id, "endpoint": CHAT}
    failure = web.json_response({"error": {"message": "It fails."}}, status=500)
    at.provider.when_one_is_made(lambda: at.provider.make_openai(order), answer=failure)
    with refusal(500, 502, 503, match="It fails"):
        await ordered(gpt(), file_id)
    assert len(at.budget.held) == 1, "it may have been made"
    await at.look(proxy, 20.0)
    assert [one.id async for one in gpt().batches.list()] == list(at.provider.batches)


async def test_an_id_that_cannot_be_remembered_is_not_told(at: Site, proxy: Proxy, gpt: Gpt) -> None:
    file_id = await uploaded(gpt(), line("a"))
    at.fail("made")
    with refusal(500, 502, 503, match="cannot be looked up"):
        await ordered(gpt(), file_id)
    at.before_call = lambda _: None
    await at.look(proxy, 20.0)
    assert [one.id async for one in gpt().batches.list()] == list(at.provider.batches)


@pytest.mark.parametrize("call", ["ended", "terms", "recorded", "settle", "close"])
@pytest.mark.parametrize("times", [1, 2])
async def test_a_settlement_that_is_cut_off_goes_on(
    at: Site, proxy: Proxy, gpt: Gpt, monkeypatch: pytest.MonkeyPatch, call: str, times: int
) -> None:
    """The process dies at its `times`-th call."""
    monkeypatch.setattr(settling, "RECORDS_MAX", 3)
    batch_id = await made(gpt(), *(line(str(number)) for number in range(5)))
    at.provider.end(batch_id)
    calls = 0
    reached = asyncio.Event()

    def count(name: str) -> None:
        nonlocal calls
        calls += name == call
        if name == call and calls == times:
            reached.set()
            raise OSError("killed")

    at.before_call = count
    await at.look(proxy, 60.0)
    await proxy.drop()
    at.before_call = lambda _: None
    again = await at.start()
    exchange_id = stored(at, batch_id).exchange_id
    assert again.admission.held_again == ([exchange_id] if reached.is_set() else [])
    await at.look(again, 600.0)
    assert len(lines_of(at)) == 5
    assert sum(one.charge_nusd or 0 for one in at.entries()) == 5 * LINE_NUSD
    assert len(own_entries(at)) == 1
    assert stored(at, batch_id).state is BatchState.SETTLED


async def test_results_that_break_off_are_read_again(
    at: Site, proxy: Proxy, gpt: Gpt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "RECORDS_MAX", 3)
    batch_id = await made(gpt(), *(line(str(number)) for number in range(9)))
    at.provider.end(batch_id)
    content = at.provider.contents[at.provider.batches[batch_id]["output_file_id"]]

    async def broken(method: str, path: str) -> web.StreamResponse | None:
        if not path.endswith("/content"):
            return None
        at.provider.before = None
        return Broken(content)

    at.provider.before = broken
    await at.look(proxy, 60.0)
    assert 0 < len(lines_of(at)) < 9
    assert own_entries(at) == []
    await at.look(proxy, 600.0)
    assert len(lines_of(at)) == 9
    assert own_entries(at)[0].details["batch"]["succeeded"] == 9


async def test_another_process_takes_over(provider: BatchProvider, at: Site, proxy: Proxy, gpt: Gpt) -> None:
    batch_id = await made(gpt(), line("a"))
    await proxy.drop()
    at.budget.held.clear()
    other = await at.start("there")
    provider.end(batch_id)
    assert await at.look(other, 60.0) == 0, "the first may be back"
    assert at.budget.held == {}
    assert await at.look(other, 300.0) == 1
    assert len(other.admission.held_again) == 1
    assert len(lines_of(at)) == 1


async def test_results_of_a_lost_batch_are_not_told(provider: BatchProvider, at: Site, proxy: Proxy, gpt: Gpt) -> None:
    batch_id = await made(gpt(), line("a"))
    kept = provider.batches.pop(batch_id)
    await at.look(proxy, 86_400.0)
    assert stored(at, batch_id).state is BatchState.RUNNING
    await at.look(proxy, 3 * 86_400.0)
    (own,) = at.entries()
    assert (own.outcome, own.charge_nusd) == ("upstream_failed", 0)
    provider.batches[batch_id] = kept
    provider.end(batch_id)
    output_id = await ended(gpt(), batch_id)
    with refusal(404):
        await gpt().files.content(output_id)


async def test_what_is_finished_is_forgotten_in_the_end(at: Site, proxy: Proxy, gpt: Gpt) -> None:
    batch_id = await made(gpt(), line("a"))
    at.provider.end(batch_id)
    await at.look(proxy, 60.0)
    at.later_s = 91 * 86_400.0
    await proxy.watcher._tidy()
    assert at.batches.find(batch_id) is None
    assert len(lines_of(at)) == 1
