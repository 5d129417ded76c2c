"""Usage that is asked for afterwards: when, of whom, with which key; and what it comes to in every book."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from proxy.billing.later import is_answer
from proxy.billing.period import month_of
from proxy.budgets.open_budgets import open_budgets
from proxy.foundation.secret import Secret
from proxy.gateway.background import later_usage
from proxy.gateway.background.later_usage import END_S, FIRST_S, LaterUsageAsker, due_s
from proxy.gateway.upstream.client import UpstreamClient
from proxy.gateway.upstream.provider import Provider
from proxy.ledger.settling.history import LedgerState
from proxy.ledger.settling.later import Question, Questions
from proxy.metering.metered import Metered
from proxy.reports.statement import StatementOwner, read_statement
from proxy.runtime.proxy.process import Proxy
from proxy.settings import ProviderSettings, load
from proxy.settings.providers import LaterUsage, UsageSettings
from proxy.sinks import sender
from proxy.sinks.kinds import SINKS
from proxy.storage.database import open_engine
from tests.support.by_hand import asking
from tests.support.clock import Clock
from tests.support.net import ask, chat_request
from tests.support.tokenweir import COST, PRICE, Tokenweir, provider_section
from tests.support.waiting import until
from tests.support.web_server import as_json, serving

pytestmark = pytest.mark.io

SECRET = "sk-canary-of-the-provider"
RECORD = {
    "id": "gen-1", "native_tokens_prompt": 40, "native_tokens_completion": 300, "native_tokens_cached": 10,
    "native_tokens_reasoning": 5, "tokens_prompt": 33, "tokens_completion": 250, "total_cost": 0.00123,
    "cancelled": True, "finish_reason": None, "latency": 500, "user_agent": "canary of a program",
}  # fmt: skip
# Of a record that is not complete yet.
ZEROS = {"native_tokens_prompt": 0, "native_tokens_completion": 0, "tokens_prompt": 0, "tokens_completion": 0}
RESPONSE = {
    "id": "resp_1", "object": "response", "status": "incomplete", "model": "gpt",
    "output": [{"type": "message", "id": "m", "content": [{"type": "output_text", "text": "Much. " * 80}]}],
    "usage": {
        "input_tokens": 40, "input_tokens_details": {"cached_tokens": 10},
        "output_tokens": 300, "output_tokens_details": {"reasoning_tokens": 5}, "total_tokens": 340,
    },
}  # fmt: skip
INTERACTION = {
    "id": "v1_1", "status": "completed", "model": "gemini", "steps": [],
    "usage": {
        "total_input_tokens": 40, "total_cached_tokens": 10, "total_output_tokens": 295, "total_thought_tokens": 5,
        "total_tokens": 340,
    },
}  # fmt: skip
# 40 prompt tokens, 10 of them cached, and 300 of output, at PRICE and COST, in nUSD.
CHARGE_NUSD, COST_NUSD = 30 * 130 + 10 * 70 + 300 * 410, 30 * 110 + 10 * 50 + 300 * 370


def chunk(number: int) -> bytes:
    delta = {"id": "gen-1", "object": "chat.completion.chunk", "model": "m", "created": 1}
    return (
        b"data: %b\n\n"
        % json.dumps(delta | {"choices": [{"index": 0, "delta": {"content": f"word {number} "}}]}).encode()
    )


def of_response(number: int) -> bytes:
    if not number:
        event: dict[str, Any] = {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}}
    else:
        event = {"type": "response.output_text.delta", "item_id": "m", "output_index": 0, "delta": f"word {number} "}
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def of_interaction(number: int) -> bytes:
    if not number:
        event: dict[str, Any] = {
            "event_type": "interaction.created",
            "interaction": {"id": "v1_1", "status": "in_progress"},
        }
    else:
        event = {"event_type": "step.delta", "index": 0, "delta": {"type": "text", "text": f"word {number} "}}
    return f"data: {json.dumps(event)}\n\n".encode()


@dataclass
class Forgetful:
    """A provider whose streams have no end, and which knows their usage later."""

    url: str = ""
    ready: bool = False
    asked: list[tuple[str, str]] = field(default_factory=list)
    """path and Authorization of each question"""
    early: dict[str, Any] = field(default_factory=dict)
    """its answers before it is ready"""
    status: int = 404
    retry_after: str | None = None
    answers: dict[str, Any] = field(
        default_factory=lambda: {
            "/v1/generation?id=gen-1": {"data": RECORD},
            "/v1/responses/resp_1": RESPONSE,
            "/v1beta/interactions/v1_1": INTERACTION,
        }
    )

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "POST":
            return await self._stream(request)
        key = request.headers.get("Authorization") or request.headers.get("x-goog-api-key", "")
        self.asked.append((request.raw_path, key))
        answers = self.answers if self.ready else self.early
        if request.raw_path in answers:
            return as_json(answers[request.raw_path])
        refused = as_json({"error": {"message": "not found"}}, self.status)
        if self.retry_after is not None:
            refused.headers["Retry-After"] = self.retry_after
        return refused

    async def _stream(self, request: web.BaseRequest) -> web.StreamResponse:
        events = {"/v1/responses": of_response, "/v1beta/interactions": of_interaction}.get(request.path, chunk)
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        for number in range(20):
            await stream.write(events(number))
        while request.transport is not None and not request.transport.is_closing():
            await asyncio.sleep(0.01)
        return stream


@asynccontextmanager
async def forgetful() -> AsyncIterator[Forgetful]:
    made = Forgetful()
    async with serving(made.serve) as made.url:
        yield made


KINDS = {
    "generation": ("/v1/chat/completions", ask("generation"), "/v1/generation?id=gen-1"),
    "stored": ("/v1/responses", {"model": "stored", "input": "How much?", "stream": True}, "/v1/responses/resp_1"),
    "google": (
        "/v1beta/interactions", {"model": "google", "input": "How much?", "stream": True}, "/v1beta/interactions/v1_1"
    ),
}  # fmt: skip


async def test_a_cut_stream_is_settled_by_what_its_provider_says_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entry, statement, budget and sink agree, to the nano-dollar; for each way to ask."""
    for module, name, value in (
        (later_usage, "LOOK_S", 0.05), (later_usage, "FIRST_S", 0.02),
        (sender, "POLL_S", 0.05),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    got: dict[str, dict[str, Any]] = {}

    async def hook(request: web.BaseRequest) -> web.StreamResponse:
        event = json.loads(await request.read())
        got[event["id"]] = event["entry"]
        return as_json({})

    async with forgetful() as provider, serving(hook) as hook_url:
        provider.early = {"/v1/generation?id=gen-1": {"data": RECORD | ZEROS}}
        sections = {
            "generation": provider_section(f"{provider.url}/v1", usage={"later": "generation"}),
            "stored": provider_section(f"{provider.url}/v1"),
            "google": provider_section(f"{provider.url}/v1beta", dialects=["gemini"]),
        }
        deployment = Tokenweir(
            tmp_path / "later",
            providers=sections,
            models={name: {"provider": name, "price": PRICE, "cost": COST} for name in sections},
            sinks={"hook": {"kind": "webhook", "url": hook_url, "secret": "${TEST_PROVIDER_KEY}"}},
            shutdown_grace_s=0,
        )
        keys = {name: deployment.change("keys", "create", "--alias", name, "--budget", "5") for name in KINDS}
        settings = load(deployment.config, deployment.environment, sinks=SINKS)
        proxy, engine = Proxy(settings), open_engine(deployment.ledger_url)
        await proxy.start()
        try:
            for name, (path, body, _) in KINDS.items():
                client = await asking(
                    f"http://127.0.0.1:{proxy.port}", chat_request(body, path=path, key=keys[name]["key"])
                )
                assert await client.head() == 200
                await client.take(600)
                client.leave()
            await until(lambda: {path for path, _ in provider.asked} == {path for *_, path in KINDS.values()})
            estimates = {one["model"]: one for one in deployment.read_ledger()}
            assert {one["usage_source"] for one in estimates.values()} == {"estimated"}
            provider.ready = True
            await until(lambda: len(deployment.read_ledger()) == 2 * len(KINDS))
            entries = deployment.read_ledger()
            for name in KINDS:
                key_id = keys[name]["key_id"]
                first, later = (one for one in entries if one["model"] == name)
                assert (later["kind"], later["usage_source"]) == ("adjustment", "provider_later")
                assert later["started_at"] == first["started_at"]
                for field_, expected in (("prompt_tokens", 40), ("completion_tokens", 300), ("cached_tokens", 10)):
                    assert (first[field_] or 0) + (later[field_] or 0) == expected
                assert nusd(first, "charge_usd") + nusd(later, "charge_usd") == CHARGE_NUSD
                assert nusd(first, "cost_usd") + nusd(later, "cost_usd") == COST_NUSD
                owner = StatementOwner(key_id, "key", name)
                statement = read_statement(engine, owner, month_of(proxy_time(later)))
                assert (statement.closing_nusd, len(statement.adjustments)) == (-CHARGE_NUSD, 1)

                async def spent(key_id: str = key_id) -> bool:
                    async with aclosing(open_budgets(settings, "cli")) as budgets:
                        states = await budgets.counter_states([key_id])
                    return [(one.spent, one.reserved, one.closed) for one in states] == [(CHARGE_NUSD, 0, 0)]

                await until(spent, poll_s=0.05)
                await until(lambda first=first, later=later: {first["entry_id"], later["entry_id"]} <= got.keys())
                assert sum(nusd(got[one["entry_id"]], "charge_usd") for one in (first, later)) == CHARGE_NUSD
            asked = len(provider.asked)
            await asyncio.sleep(0.2)
            assert len(provider.asked) == asked, "each is settled once"
            assert {key.removeprefix("Bearer ") for _, key in provider.asked} == {deployment.PROVIDER_KEY}
            async with aiohttp.request("GET", f"http://127.0.0.1:{proxy.port}/metrics") as answer:
                exposition = await answer.text()
        finally:
            await proxy.stop()
            engine.dispose()
        assert deployment.unreconciled() == []
        for name in KINDS:
            labels = f'{{model="{name}",provider="{name}",result="reported"}}'
            assert f"tokenweir_later_usage_total{labels} 1.0" in exposition
        code, printed = deployment.found("reconcile", "--estimates", "--json")
        lines = [json.loads(line) for line in printed.splitlines()]
        assert (code, [(one["model"], one["reported"], one["unanswered"]) for one in lines]) == (
            0, [("generation", 1, 0), ("google", 1, 0), ("stored", 1, 0)],
        )  # fmt: skip
        assert all(0 < one["completion_error"] < 1 and one["completion_bias"] < 1 for one in lines)
        assert (
            "generation/generation  1 reported, 0 unanswered  prompt ±"
            in deployment.found("reconcile", "--estimates")[1]
        )
        assert b"canary of a program" not in deployment.outputs()
        deployment.close()


def nusd(entry: dict[str, Any], name: str) -> int:
    sign, text = (-1, entry[name][1:]) if entry[name].startswith("-") else (1, entry[name])
    whole, _, part = text.partition(".")
    return sign * (int(whole) * 10**9 + int(part.ljust(9, "0") or 0))


def proxy_time(entry: dict[str, Any]) -> float:
    from datetime import datetime

    return datetime.fromisoformat(entry["started_at"]).timestamp()


# -- when and whom it asks


def a_question(number: int = 0, **more: Any) -> Question:
    values: dict[str, Any] = {
        "exchange_id": f"e{number}", "provider": "scripted", "endpoint": "/v1/chat/completions", "response_id": "gen-1",
        "how": "generation", "credential": None, "node": "here", "settled_at": 1_000.0, **more,
    }  # fmt: skip
    return Question(**values)


@dataclass
class Asker:
    """The asker with a ledger of the test."""

    clock: Clock
    news: list[Question] = field(default_factory=list)
    settled_by_others: list[str] = field(default_factory=list)
    settled: list[tuple[str, bool]] = field(default_factory=list)
    down: bool = False
    may_change: bool = False
    timeline: str = "1"
    cursors: list[tuple[float, str]] = field(default_factory=list)
    asker: Any = None

    async def read(self, after: tuple[float, str]) -> Questions:
        self.cursors.append(after)
        news, self.news = self.news, []
        others, self.settled_by_others = self.settled_by_others, []
        return Questions(news, others, (self.clock.now, ""), False, LedgerState(self.timeline, 1))

    async def settle(self, question: Question, answer: Metered | None, is_last: bool) -> bool:
        if self.down:
            raise OSError("the ledger is away")
        assert answer is None or is_answer(answer)
        if self.may_change and not is_last:
            return False
        self.settled.append((question.exchange_id, answer is not None))
        return True

    async def told(self, *news: Question) -> None:
        """The ledger has these questions."""
        self.news = list(news)
        await self.look_at(1)

    async def look_at(self, age_s: float) -> None:
        self.clock.now = 1_000.0 + age_s
        await self.asker.look()


@asynccontextmanager
async def asker(provider: Forgetful, **settings: Any) -> AsyncIterator[Asker]:
    client = UpstreamClient()
    settings = {"api_key": Secret(SECRET), "usage": UsageSettings(later=LaterUsage.GENERATION), **settings}
    configured = ProviderSettings(name="scripted", base_url=f"{provider.url}/v1", **settings)
    made = Asker(Clock(1_000.0))
    made.asker = LaterUsageAsker(
        read=made.read, settle=made.settle, providers={"scripted": Provider.of(configured, write_stall_s=60)},
        client=client, node="here", unix_time=lambda: made.clock.now,
    )  # fmt: skip
    try:
        yield made
    finally:
        await client.close()


def test_each_pause_is_as_long_as_the_age() -> None:
    ages = [0.0]
    while ages[-1] < END_S:
        ages.append(due_s(ages[-1]))
    assert ages[1:4] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert (ages[-1], len(ages) - 1) == (END_S, 15)
    assert due_s(25.0) == 40.0, "a restart asks nothing sooner"


async def test_it_asks_ever_more_seldom_and_gives_up_after_a_day() -> None:
    async with forgetful() as provider, asker(provider) as on:
        await on.told(a_question())
        for age_s, asked in ((9, 0), (10, 1), (19, 1), (20, 2), (39, 2), (45, 3), (79, 3), (80, 4)):
            await on.look_at(age_s)
            assert len(provider.asked) == asked, age_s
        await on.look_at(END_S - 1)
        assert on.settled == []
        await on.look_at(END_S)
        assert on.settled == [("e0", False)]
        await on.look_at(END_S + 100)
        assert len(provider.asked) == 6


async def test_an_answer_that_may_change_is_asked_for_again_until_it_is_the_last() -> None:
    async with forgetful() as provider, asker(provider) as on:
        provider.ready, on.may_change = True, True
        await on.told(a_question())
        for age_s, asked in ((10, 1), (19, 1), (20, 2), (END_S - 1, 3)):
            await on.look_at(age_s)
            assert (on.settled, len(provider.asked)) == ([], asked)
        await on.look_at(END_S)
        assert on.settled == [("e0", True)]


async def test_a_ledger_that_lost_commits_is_read_again() -> None:
    """An adjustment may be among them: its exchange is asked about again."""
    async with forgetful() as provider, asker(provider) as on:
        provider.ready = True
        await on.told(a_question())
        await on.look_at(10)
        assert on.settled == [("e0", True)]
        on.cursors.clear()
        on.timeline = "2"
        await on.look_at(20)
        start = 1_020.0 - later_usage.LOOK_BACK_S
        assert on.cursors == [(1_010.0, ""), (start, "")]
        on.news = [a_question()]
        await on.look_at(30)
        await on.look_at(40)
        assert on.settled == [("e0", True), ("e0", True)]
        assert on.cursors[2:] == [(1_020.0, ""), (1_030.0, "")]


async def test_what_a_process_recorded_that_is_gone_others_ask_for_an_hour_later() -> None:
    async with forgetful() as provider, asker(provider) as on:
        provider.ready = True
        await on.told(a_question(0, node="gone"), a_question(1))
        await on.look_at(60)
        assert on.settled == [("e1", True)]
        on.settled_by_others = ["e0"]
        await on.look_at(3_700)
        assert on.settled == [("e1", True)]
        on.news = [a_question(2, node=None, settled_at=1_000.0)]
        await on.look_at(3_609)
        assert len(on.settled) == 1
        await on.look_at(3_660)
        assert on.settled[1:] == [("e2", True)]


async def test_a_provider_is_asked_at_most_so_often_and_waited_for_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(later_usage, "ASKS_MAX", 2)
    async with forgetful() as provider, asker(provider) as on:
        await on.told(*(a_question(number, settled_at=1_000.0 + number) for number in range(3)))
        await on.look_at(15)
        assert len(provider.asked) == 2
        provider.status, provider.retry_after = 429, "300"
        await on.look_at(16)
        assert len(provider.asked) == 3
        await on.look_at(30)
        assert len(provider.asked) == 5, "the two that were not told to wait"
        provider.ready = True
        await on.look_at(310)
        assert len(provider.asked) == 5
        await on.look_at(331)
        await on.look_at(332)
        assert sorted(on.settled) == [("e0", True), ("e1", True), ("e2", True)]


async def test_it_is_asked_again_if_the_ledger_was_away() -> None:
    async with forgetful() as provider, asker(provider) as on:
        provider.ready, on.down = True, True
        await on.told(a_question())
        with pytest.raises(OSError, match="away"):
            await on.look_at(10)
        on.down = False
        await on.look_at(11)
        assert on.settled == [("e0", True)]


@pytest.mark.parametrize(
    "unknown",
    [{"provider": "gone"}, {"how": "of a later version"}, {"how": "stored", "endpoint": "/v9/of-a-later-version"}],
)
async def test_what_cannot_be_asked_is_left_alone(unknown: dict[str, Any]) -> None:
    async with forgetful() as provider, asker(provider) as on:
        await on.told(a_question(**unknown))
        await on.look_at(2 * END_S)
        assert (on.settled, provider.asked) == ([], [])


async def test_the_health_of_the_provider_does_not_change() -> None:
    async with forgetful() as provider, asker(provider) as on:
        provider.status = 500
        (configured,) = on.asker._providers.values()
        await on.told(*map(a_question, range(12)))
        await on.look_at(10)
        assert len(provider.asked) == 12
        assert configured.health.state(0.0) == "closed"


@pytest.mark.parametrize(
    ("base_url", "setting", "later"),
    [
        ("https://openrouter.ai/api/v1", "auto", "generation"),
        ("https://eu.openrouter.ai/api/v1", "auto", "generation"),
        ("https://ai-gateway.vercel.sh/v1", "auto", "generation"),
        ("https://api.openai.com/v1", "auto", "stored"),
        ("https://openrouter.ai.evil.example/v1", "auto", "stored"),
        ("https://openrouter.ai/api/v1", "off", "off"),
        ("https://relay.example/v1", "generation", "generation"),
    ],
)
def test_how_a_provider_is_asked(base_url: str, setting: str, later: str) -> None:
    settings = ProviderSettings(name="p", base_url=base_url, usage=UsageSettings(later=LaterUsage(setting)))
    assert Provider.of(settings, write_stall_s=60).later == later
