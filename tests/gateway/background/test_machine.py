"""Whatever clients and a provider do to answers that are made in the background, in any order: each exchange is billed
once, by the final usage, not before it is known, and what anybody read is not free."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from proxy.billing.record import BillableParts, UsageRecord
from proxy.gateway.background.polling import Pace
from proxy.http.server import wait_until
from proxy.metering.usage import UsageSource
from tests.gateway.inprocess import Gateway, OwnersInMemory, gateway
from tests.gateway.responses.stage import KEYS
from tests.support.clients import Clients, RefusedError
from tests.support.examples import repeats
from tests.support.responses_provider import ResponsesProvider, responses_provider
from tests.support.sdks import openai

pytestmark = pytest.mark.io

QUICK = Pace(first_s=0.005, pause_s_max=0.02, usage_s=0.01, gone_s=0.05, stopping_s=0.05)
PIECE = " rather more than a little"
ENDS = ("completed", "incomplete", "failed")

_T = TypeVar("_T")


@dataclass
class Made:
    """What is true of one response."""

    response_id: str
    usage: dict[str, Any]
    """what it comes to, if it ends"""
    stream: openai.AsyncStream[openai.types.responses.ResponseStreamEvent] | None = None
    ended: str = ""
    reports: bool = False
    """with its usage"""
    lost: bool = False
    pieces: int = 0
    """that a client has got"""
    whole: bool = False
    """a client has got the answer with its usage"""


@dataclass
class World:
    """A provider, two proxies, their clients."""

    provider: ResponsesProvider
    proxies: list[Gateway]
    clients: Clients
    made: list[Made] = field(default_factory=list)

    def sdk(self, proxy: int, key: str) -> openai.AsyncOpenAI:
        return self.clients.gpt(self.proxies[proxy].url, key)

    def records(self) -> dict[str | None, list[UsageRecord]]:
        """By response."""
        found: dict[str | None, list[UsageRecord]] = {}
        for record in self.proxies[0].outbox.records:
            run = record.opened.background
            found.setdefault(getattr(run, "response_id", None), []).append(record)
        return found


def usage(number: int) -> dict[str, Any]:
    counts = {"input_tokens": 11 + number, "output_tokens": 100 + number, "total_tokens": 111 + 2 * number}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return counts | details


WHICH, PROXY, WHO = st.integers(0, 3), st.integers(0, 1), st.sampled_from(["anna", "bert"])


class Background(RuleBasedStateMachine):
    """One example."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.opened = AsyncExitStack()
        self.world: World = None  # type: ignore[assignment]

    def do(self, what: Awaitable[_T]) -> _T:
        async def bounded() -> _T:
            async with asyncio.timeout(20):
                return await what

        return self.loop.run_until_complete(bounded())

    @initialize()
    def begin(self) -> None:
        async def open_all() -> World:
            folder = Path(self.opened.enter_context(tempfile.TemporaryDirectory()))
            provider = await self.opened.enter_async_context(responses_provider())
            store, proxies = OwnersInMemory(), []
            for name in ("one", "two"):
                (folder / name).mkdir()
                made = gateway(folder / name, provider.url, keys=KEYS, store=store, pace=QUICK)
                proxies.append(await self.opened.enter_async_context(made))
            return World(provider, proxies, await self.opened.enter_async_context(Clients()))

        self.world = self.do(open_all())

    # -- clients

    @rule(streamed=st.booleans(), stored=st.booleans())
    def create(self, streamed: bool, stored: bool) -> None:
        world = self.world
        if len(world.made) == 4:
            return

        async def ask() -> Made:
            responses = world.sdk(0, "anna").responses
            number = len(world.made)
            asked: dict[str, Any] = {"model": "electron", "input": "How much?", "background": True, "store": stored}
            if not streamed:
                return Made((await responses.create(**asked)).id, usage(number))
            stream = await responses.create(**asked, stream=True)
            return Made((await anext(stream)).response.id, usage(number), stream)

        world.made.append(self.do(ask()))

    def some(self, which: int) -> Made | None:
        made = self.world.made
        return made[which % len(made)] if made else None

    @rule(which=WHICH, proxy=PROXY, who=WHO)
    def retrieve(self, which: int, proxy: int, who: str) -> None:
        if (one := self.some(which)) is not None:
            got = self.do(self.tried(self.world.sdk(proxy, who).responses.retrieve(one.response_id)))
            one.whole = one.whole or (got is not None and got.usage is not None)

    @rule(which=WHICH, proxy=PROXY, who=WHO, after=st.integers(-1, 3), events=st.integers(0, 4))
    def stream(self, which: int, proxy: int, who: str, after: int, events: int) -> None:
        """Read some of what was said so far."""
        if (one := self.some(which)) is None or one.lost:
            return
        told = len(self.world.provider.told[one.response_id])
        starting: dict[str, Any] = {"starting_after": after} if after >= 0 else {}

        async def read() -> None:
            got = await self.tried(
                self.world.sdk(proxy, who).responses.retrieve(one.response_id, stream=True, **starting)
            )
            if got is None:
                return
            for _ in range(min(events, told - after - 1)):
                self.saw(one, await anext(got))
            await got.close()

        self.do(read())

    @rule(which=WHICH)
    def read_own_stream(self, which: int) -> None:
        one = self.some(which)
        if one is None or one.stream is None or one.lost:
            return
        if one.ended or one.pieces < len(self.world.provider.told[one.response_id]) - 1:
            event = self.do(anext(one.stream, None))  # type: ignore[arg-type]
            if event is not None:
                self.saw(one, event)

    @rule(which=WHICH)
    def leave(self, which: int) -> None:
        one = self.some(which)
        if one is not None and one.stream is not None:
            stream, one.stream = one.stream, None
            self.do(stream.close())

    @rule(which=WHICH, proxy=PROXY, who=WHO)
    def cancel(self, which: int, proxy: int, who: str) -> None:
        if (one := self.some(which)) is not None:
            runs = self.world.provider.runs(one.response_id)
            self.world.provider.usage_of_cancelled = one.usage if one.response_id.endswith(("0", "2")) else None
            if self.do(self.tried(self.world.sdk(proxy, who).responses.cancel(one.response_id))) is not None and runs:
                one.ended, one.reports = "cancelled", self.world.provider.usage_of_cancelled is not None

    @rule(which=WHICH, proxy=PROXY, who=WHO)
    def delete(self, which: int, proxy: int, who: str) -> None:
        if (one := self.some(which)) is not None:
            there = one.response_id in self.world.provider.stored
            with_open_end = self.world.provider.runs(one.response_id)
            self.do(self.tried(self.world.sdk(proxy, who).responses.delete(one.response_id)))
            deleted = there and one.response_id not in self.world.provider.stored
            assert not (deleted and with_open_end), "nobody can ask any more what it comes to"

    async def tried(self, asked: Awaitable[_T]) -> _T | None:
        """None: it was refused."""
        try:
            return await asked
        except RefusedError:
            return None

    def saw(self, one: Made, event: openai.types.responses.ResponseStreamEvent) -> None:
        one.pieces += event.type == "response.output_text.delta"
        one.whole = one.whole or getattr(getattr(event, "response", None), "usage", None) is not None

    # -- the provider

    @rule(which=WHICH, pieces=st.integers(1, 3))
    def say(self, which: int, pieces: int) -> None:
        one = self.some(which)
        if one is not None and self.world.provider.runs(one.response_id):
            for _ in range(pieces):
                self.do(self.world.provider.say(one.response_id, PIECE))

    @rule(which=WHICH, status=st.sampled_from(ENDS))
    def finish(self, which: int, status: str) -> None:
        one = self.some(which)
        if one is not None and self.world.provider.runs(one.response_id):
            one.ended, one.reports = status, True
            self.do(self.world.provider.finish(one.response_id, status, one.usage))

    @rule(statuses=st.lists(st.sampled_from([500, 503, 429, 404, 401]), min_size=1, max_size=3))
    def fail(self, statuses: list[int]) -> None:
        self.world.provider.failing += statuses

    @rule(which=WHICH)
    def expire(self, which: int) -> None:
        one = self.some(which)
        if one is not None and one.response_id in self.world.provider.stored:
            one.lost = True
            self.do(self.world.provider.lose(one.response_id))

    @rule(pause_s=st.sampled_from([0.0, 0.02, 0.1]))
    def wait(self, pause_s: float) -> None:
        self.do(asyncio.sleep(pause_s))

    # -- what must hold

    @invariant()
    def nothing_is_billed_before_its_end(self) -> None:
        if self.world is not None:
            records = self.world.records()
            for one in self.world.made:
                assert one.ended or one.lost or one.response_id not in records

    def teardown(self) -> None:
        try:
            if self.world is not None:
                self.do(self.end())
                self.check()
        finally:
            self.do(self.opened.aclose())
            self.loop.close()

    async def end(self) -> None:
        """All come to their ends."""
        world = self.world
        world.provider.failing.clear()
        for one in world.made:
            if world.provider.runs(one.response_id):
                one.ended, one.reports = "completed", True
                await world.provider.finish(one.response_id, "completed", one.usage)
            if one.stream is not None:
                await one.stream.close()
        first = world.proxies[0]
        assert await wait_until(lambda: not first.background.live and not first.handler.live, deadline_s=10)

    def check(self) -> None:
        world = self.world
        records = world.records()
        assert len(world.proxies[0].outbox.records) == len(world.made)
        assert {held.closed for held in world.proxies[0].unlimited.held} <= {1}
        assert world.proxies[1].outbox.records == []
        for one in world.made:
            (record,) = records[one.response_id]
            read = record.reading
            if one.reports and (one.whole or not one.lost):
                counts = read.usage.prompt_tokens, read.usage.completion_tokens
                assert counts == (one.usage["input_tokens"], one.usage["output_tokens"])
                assert (read.source, record.bills) == (UsageSource.REPORTED, BillableParts.EVERYTHING)
            elif one.pieces:
                assert record.bills in (BillableParts.EVERYTHING, BillableParts.OUTPUT)
                assert (read.usage.completion_tokens or 0) >= 3 * one.pieces / 4


@pytest.mark.hypothesis
def test_each_exchange_is_billed_once_by_its_final_usage() -> None:
    run_state_machine_as_test(
        Background,
        settings=settings(
            max_examples=repeats(25, gate=8), stateful_step_count=repeats(25, gate=20), deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
