"""Whatever happens in whatever order: each line that was answered is booked once, nothing is passed on before, and the
budget holds."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proxy.billing.batch import BatchState
from tests.gateway.batches.asking import line, made, made_by, request
from tests.gateway.batches.site import Proxy, Site, site
from tests.support.batch_provider import BatchProvider, Document, batch_provider, chat_answer, message_answer
from tests.support.clients import FAILURES, Clients
from tests.support.examples import repeats
from tests.support.sdks import anthropic, openai

pytestmark = pytest.mark.io

CALLS = ("made", "find", "ended", "terms", "recorded", "settle", "settle", "close", "claim", "postpone", "known")


NODES, FAMILIES, ANY = st.sampled_from(["here", "there"]), st.sampled_from(["openai", "anthropic"]), st.integers(0, 7)
ENDED = ("completed", "expired", "cancelled", "ended")
ENDS = st.sampled_from(ENDED[:3])


@dataclass
class Expected:
    """A batch as it should be."""

    answered: set[str] = field(default_factory=set)
    ended: bool = False
    told: bool = False
    """a client has the results"""


class World(RuleBasedStateMachine):
    """A provider, two proxies, and what clients and faults do to them."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.opened = AsyncExitStack()
        self.folder = tempfile.TemporaryDirectory()
        self.expected: dict[str, Expected] = {}
        self.proxies: dict[str, Proxy] = {}
        self.fault: str | None = None
        self.is_ledger_away = False
        self.later_s = 0.0
        self.numbers = 0

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    @initialize()
    def begin(self) -> None:
        async def started() -> None:
            self.provider: BatchProvider = await self.opened.enter_async_context(batch_provider())
            self.provider.clock = time.time
            self.at: Site = await self.opened.enter_async_context(site(Path(self.folder.name) / "site", self.provider))
            self.at.budget.nusd_max = 10_000_000
            self.at.before_call = self._called
            self.clients = await self.opened.enter_async_context(Clients())
            for node in ("here", "there"):
                self.proxies[node] = await self.at.start(node)

        self.run(started())
        for node, family in (("here", "openai"), ("there", "anthropic")):
            self.make(node, 3, family, None)

    def _called(self, name: str) -> None:
        if name == self.fault or (self.is_ledger_away and name in ("settle", "recorded")):
            self.fault = None
            raise OSError("a fault of the test")

    def _gpt(self, node: str, key: str = "anna") -> openai.AsyncOpenAI:
        return self.clients.gpt(self.proxies[node].url, key)

    def _claude(self, node: str, key: str = "anna") -> anthropic.AsyncAnthropic:
        return self.clients.claude(self.proxies[node].url, key)

    # -- what clients do

    @rule(node=NODES, count=st.integers(1, 4), family=FAMILIES, fault=st.sampled_from([None, None, "made", "add"]))
    def make(self, node: str, count: int, family: str, fault: str | None) -> None:
        self.fault = fault or self.fault
        self.numbers += 1
        names = [f"{self.numbers}-{number}" for number in range(count)]

        async def asked() -> str:
            if family == "openai":
                return await made(self._gpt(node), *map(line, names))
            return await made_by(self._claude(node), *map(request, names))

        try:
            batch_id = str(self.run(asked()))
        except FAILURES:  # a fault, or the budget: it may be found later
            return
        self.expected[batch_id] = Expected()

    @precondition(lambda self: self.expected)
    @rule(node=NODES, number=ANY, key=st.sampled_from(["anna", "bert", "anna", "carl"]))
    def download(self, node: str, number: int, key: str) -> None:
        batch_id, expected = self._one_of(self.expected, number)

        async def read() -> list[str]:
            if batch_id.startswith("msgbatch_"):
                results = await self._claude(node, key).messages.batches.results(batch_id)
                return [one.custom_id async for one in results]
            output = (await self._gpt(node, key).batches.retrieve(batch_id)).output_file_id
            if output is None:
                return []
            content = (await self._gpt(node, key).files.content(output)).content
            return [*filter(None, content.decode().split("\n"))]

        try:
            got = self.run(read())
        except FAILURES:
            return
        assert key != "carl", "a stranger has nothing of it"
        if got:
            assert expected.ended
            expected.told = True

    @precondition(lambda self: self.expected)
    @rule(node=NODES, number=ANY)
    def delete(self, node: str, number: int) -> None:
        """Of Anthropic's, which is refused until it is settled; then it is nobody's."""
        batch_id, expected = self._one_of(self.expected, number)
        if not batch_id.startswith("msgbatch_"):
            return
        try:
            self.run(self._claude(node).messages.batches.delete(batch_id))
        except FAILURES:
            return
        assert expected.ended
        expected.told = True

    # -- what providers do

    @precondition(lambda self: any(not one.ended for one in self.expected.values()))
    @rule(number=ANY, status=ENDS, seed=st.integers(0, 15), node=NODES, away=st.booleans())
    def end(self, number: int, status: str, seed: int, node: str, away: bool) -> None:
        """And somebody wants the results, perhaps while the ledger cannot be written."""
        batch_id, expected = self._one_of({k: v for k, v in self.expected.items() if not v.ended}, number)
        chance = random.Random(seed)

        def answered(one: Document) -> Document | None:
            if status != "completed" and chance.random() < 0.5:
                return None
            expected.answered.add(one["custom_id"])
            return chat_answer("electron") if "body" in one else message_answer("claude")

        expected.ended = True
        self.provider.end(batch_id, status, answered=answered)
        self.is_ledger_away = away
        self.download(node, list(self.expected).index(batch_id), "anna")

    @rule()
    def fail_once(self) -> None:
        async def failing(method: str, path: str) -> web.StreamResponse | None:
            self.provider.before = None
            return web.json_response({"error": {"message": "It fails."}}, status=500)

        self.provider.before = failing

    # -- what happens to us

    @rule(call=st.sampled_from(CALLS))
    def fault_next(self, call: str) -> None:
        self.fault = call

    @rule()
    def the_ledger_goes_or_comes(self) -> None:
        self.is_ledger_away = not self.is_ledger_away

    @rule(node=NODES, seconds=st.sampled_from([1.0, 30.0, 400.0]))
    def look(self, node: str, seconds: float) -> None:
        self.later_s += seconds
        self.at.later_s = self.later_s
        try:
            self.run(self.proxies[node].watcher.look())
        except OSError:
            return

    @precondition(lambda self: self.expected)
    @rule(node=NODES, waits=st.integers(0, 6), number=ANY)
    def kill(self, node: str, waits: int, number: int) -> None:
        """Perhaps in the middle of a settlement."""
        batch_id, _ = self._one_of(self.expected, number)

        async def killed() -> None:
            found = self.at.batches.find(batch_id)
            if found is not None and found.state is BatchState.RUNNING:
                self.proxies[node].service._settler.begin(found)
                for _ in range(waits):
                    await asyncio.sleep(0.001)
            await self.proxies[node].drop()
            fault, self.fault = self.fault, None
            self.proxies[node] = await self.at.start(node)
            self.fault = fault

        self.run(killed())

    def _one_of(self, some: dict[str, Expected], number: int) -> tuple[str, Expected]:
        return list(some.items())[number % len(some)]

    # -- what is always true

    @invariant()
    def every_line_is_booked_at_most_once_and_what_is_told_is_booked(self) -> None:
        if not self.proxies:
            return
        booked: dict[str, list[str]] = {}
        charged, entered = 0, set()
        for entry in self.at.entries():
            entered.add(entry.exchange_id)
            charged += entry.charge_nusd or 0
            if "custom_id" in entry.details:
                booked.setdefault(entry.details["batch_id"], []).append(entry.details["custom_id"])
        for batch_id, expected in self.expected.items():
            names = booked.get(batch_id, [])
            assert len(names) == len(set(names)), "a line is booked twice"
            assert set(names) <= expected.answered
            if expected.told:
                assert set(names) == expected.answered, "results were passed on before they were booked"
        assert self.at.budget.total + charged <= self.at.budget.nusd_max
        for batch_id in self.provider.batches:
            found = self.at.batches.find(batch_id)
            if found is not None and found.state is BatchState.RUNNING and found.exchange_id not in entered:
                assert self.at.budget.held[found.exchange_id] == found.reserved_nusd, (
                    "it is reserved until it is settled"
                )

    def teardown(self) -> None:
        try:
            if self.proxies:
                self._settle_all()
        finally:
            self.run(self.opened.aclose())
            self.run(self.loop.shutdown_default_executor())
            self.loop.close()
            self.folder.cleanup()

    def _settle_all(self) -> None:
        """Without faults, all that has ended is settled; every batch that was made has an owner."""
        self.fault = self.provider.before = None
        self.is_ledger_away = False
        for batch_id in [*self.provider.batches]:
            status = self.provider.batches[batch_id]
            if status.get("status", status.get("processing_status")) not in ENDED:
                self.provider.end(batch_id)
        for _ in range(4):
            self.later_s += 1_000.0
            self.at.later_s = self.later_s
            for proxy in self.proxies.values():
                looks = 0
                while self.run(proxy.watcher.look()):
                    looks += 1
                    assert looks < 100
        answered = sum(
            self.provider.contents[batch["output_file_id"]].count(b"\n") if batch.get("output_file_id") else 0
            for batch in self.provider.batches.values()
        ) + sum(results.count(b"succeeded") for results in self.provider.results.values())
        entries = self.at.entries()
        assert sum("custom_id" in entry.details for entry in entries) == answered
        assert len({entry.exchange_id for entry in entries}) == len(entries)
        assert self.at.budget.held == {}, "what is settled is not reserved any more"


World.TestCase.settings = settings(
    max_examples=repeats(60, gate=4), stateful_step_count=repeats(20, gate=12), deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
TestWorld = pytest.mark.hypothesis(World.TestCase)
