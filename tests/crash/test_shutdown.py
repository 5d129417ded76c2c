"""SIGTERM and SIGINT: no new work, time for what runs, an honest end for what does not end; nothing left to recover."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from decimal import Decimal
from time import monotonic
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from proxy.demo.script import Send, Shape, Stall
from proxy.demo.shapes import sse as event
from tests.crash.chaos import Chaos, Instant
from tests.crash.stage import Stage, begin_stopping, entries_of, left_behind, quick_key, told, until
from tests.support import sse
from tests.support.examples import SEED
from tests.support.net import RawClient, Response
from tests.support.provider import ScriptedProvider, broken_after, silent
from tests.support.tokenweir import COMMAND, Tokenweir

# Ends well within the grace, or never.
SHORT = Shape("openai", tokens=20, pace_ms=20)
LONG = Shape("openai", tokens=2_000, pace_ms=20)
WORD = event({"choices": [{"index": 0, "delta": {"content": "water"}}]})
USAGE = {"prompt_tokens": 17, "completion_tokens": 5, "total_tokens": 22}
STOPS = 30


@pytest.fixture(params=["a copy", pytest.param("its command", marks=pytest.mark.thorough)])
def signalled(running: Tokenweir, request: pytest.FixtureRequest) -> Iterator[Tokenweir]:
    """The deployment; also as a process that its own command has started: signals meet it as they meet a user's."""
    if request.param == "a copy":
        yield running
        return
    running.stop()
    running.program = COMMAND
    yield running.start()
    running.close()
    running.program = None


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
async def test_what_runs_may_finish_and_nothing_new_begins(
    signalled: Tokenweir, key: str, provider: ScriptedProvider, number: signal.Signals
) -> None:
    running, start = signalled, "copied" if signalled.program is None else "started"
    names = [provider.script(f"{number.name}-{start}-{kind}", SHORT) for kind in ("first", "second", "drained")]
    drained = f"drain/{names[2]}"
    async with Stage(running, key) as stage:
        streams = [await stage.begin(name) for name in names[:2]]
        leaving, _ = await stage.begin(drained)
        leaving.close()
        idle = await stage.ask("nobody-asks-for-this")
        assert (await idle.read()).status == 404
        await begin_stopping(running, number)
        assert await _refused(stage, names[0])
        assert await _closed(idle), "an idle connection is not kept open"
        for client, response in streams:
            await client.read_body(response)
            assert (response.ended, sse.done(response.body)) == ("complete", True)
    assert running._wait() == 0
    assert left_behind(running) == (0, 0, 0)
    *served, left = entries_of(running, *names[:2], drained)
    assert {(entry["outcome"], entry["usage_source"], entry["completion_tokens"]) for entry in served} == {
        ("served", "reported", 20)
    }
    assert (left["outcome"], left["usage_source"], left["completion_tokens"]) == ("client_left", "reported", 20)


async def test_requests_are_taken_until_load_balancers_have_noticed(
    tokenweir: Callable[..., Tokenweir], provider: ScriptedProvider
) -> None:
    running = tokenweir(drain_delay_s=1.5, shutdown_grace_s=5)
    key, name = quick_key(running), provider.script("noticed", Shape("openai", tokens=3))
    async with Stage(running, key) as stage:
        await begin_stopping(running)
        with pytest.raises(HTTPError) as refused:
            await asyncio.to_thread(urlopen, f"{running.url}/readyz", timeout=5)
        assert (refused.value.code, refused.value.read()[:28]) == (503, b"The proxy is shutting down.\n")
        assert (await stage.whole(name)).status == 200, "a client that was sent here is served"
        began = monotonic()
        assert await asyncio.to_thread(running._wait) == 0
        assert monotonic() - began < 5
    assert entries_of(running, name)[0]["outcome"] == "served"


async def _refused(stage: Stage, model: str) -> bool:
    """A new request finds nobody, or a 503."""
    try:
        return (await stage.whole(model)).status == 503
    except (ConnectionError, EOFError):
        return True


async def _closed(client: RawClient) -> bool:
    try:
        return await client.read_to_end() == b""
    except ConnectionError:
        return True


@pytest.mark.thorough
@pytest.mark.waits
async def test_after_the_grace_every_stream_gets_a_word_and_an_entry(
    running: Tokenweir, key: str, provider: ScriptedProvider
) -> None:
    provider.script("flows", LONG)
    provider.script("told", broken_after([WORD, event({"choices": [], "usage": USAGE})], "stall"))
    provider.script("amid", [Send(WORD), Send(WORD[:20]), Stall()])
    provider.script("silent", silent())
    provider.script("thinks", Shape("openai", tokens=1000, pace_ms=1000))
    provider.script("floods", Shape("openai", tokens=50_000))
    provider.script("drained", LONG)
    async with Stage(running, key) as stage:
        flows = await stage.begin("flows")
        told_usage = await stage.begin("told", usage=True, until=b'"usage"')
        amid = await stage.begin("amid")
        waiting = [await stage.ask("silent"), await stage.ask("thinks", stream=False)]
        await stage.ask("floods", receive_buffer_bytes=4096)
        leaving, _ = await stage.begin("drain/drained")
        leaving.close()
        await until(lambda: len(provider.log()) == 7)
        assert await told(running, signal.SIGTERM) == 0
        cut = [await client.read_body(response) for client, response in (flows, told_usage, amid)]
        refused = [await client.read() for client in waiting]
    assert left_behind(running) == (0, 0, 0)
    assert [_last_word(response) for response in cut] == ["shutting_down", "shutting_down", None]
    assert [response.ended for response in cut] == ["cut", "cut", "cut"], (
        "a clean end would say that nothing is missing"
    )
    assert not any(sse.done(response.body) for response in cut)
    assert [response.status for response in refused] == [503, 503]

    flowing, reported, amid_entry, unanswered, thinking, flooded, drained = entries_of(
        running, "flows", "told", "amid", "silent", "thinks", "floods", "drain/drained"
    )
    assert {entry["outcome"] for entry in (flowing, reported, amid_entry, unanswered, thinking)} == {"shut_down"}
    assert (flowing["usage_source"], flowing["events"]) == ("estimated", len(sse.events(cut[0].body)))
    assert flowing["completion_tokens"] > 0
    assert (reported["usage_source"], reported["completion_tokens"]) == ("reported", 5)
    assert amid_entry["bytes"] == len(cut[2].body)
    assert [Decimal(entry["charge_usd"]) for entry in (unanswered, thinking)] == [0, 0], "no provider had accepted"
    assert flooded["outcome"] in {"shut_down", "client_left"}
    assert (drained["outcome"], drained["usage_source"]) == ("client_left", "estimated")


def _last_word(response: Response) -> str | None:
    """The error code that the stream ended with."""
    last = sse.events(response.body)[-1].json
    code: str | None = last.get("error", {}).get("code")
    return code


async def test_a_second_signal_ends_what_runs_and_nothing_is_left(
    running: Tokenweir, key: str, provider: ScriptedProvider
) -> None:
    provider.script("impatient", LONG)
    async with Stage(running, key) as stage:
        client, response = await stage.begin("impatient")
        await begin_stopping(running)
        assert await told(running, signal.SIGTERM) == 0
        await client.read_body(response)
        assert b"shutting_down" in response.body
    assert left_behind(running) == (0, 0, 0)
    (entry,) = entries_of(running, "impatient")
    assert (entry["outcome"], entry["bytes"]) == ("shut_down", len(response.body))


@pytest.mark.thorough
async def test_nothing_is_left_to_recover_whenever_the_signal_comes(running: Tokenweir, chaos: Chaos) -> None:
    await _without_recovery(running, chaos, Instant.MIDWAY)


@pytest.mark.slow
async def test_nothing_is_left_to_recover_after_many_signals(running: Tokenweir, chaos: Chaos) -> None:
    for _ in range(STOPS // 3):
        for instant in (Instant.ADMISSION, Instant.MIDWAY, Instant.END):
            await _without_recovery(running, chaos, instant)


async def _without_recovery(running: Tokenweir, chaos: Chaos, instant: Instant) -> None:
    recovered = running.log.read_text().count("recovered")
    wrong = await chaos.round(instant, gently=True)
    assert not wrong, f"seed {SEED}: {wrong}"
    assert running.log.read_text().count("recovered") == recovered


async def test_a_hangup_ends_nothing(running: Tokenweir, key: str, provider: ScriptedProvider) -> None:
    name = provider.script("hangup", SHORT)
    async with Stage(running, key) as stage:
        client, response = await stage.begin(name)
        running.signal(signal.SIGHUP)
        await client.read_body(response)
    assert (response.ended, sse.done(response.body)) == ("complete", True)
    await until(lambda: "the configuration was reloaded" in running.log.read_text())
    assert running.child is not None
    assert running.child.poll() is None
