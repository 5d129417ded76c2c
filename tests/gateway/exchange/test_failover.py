"""Several providers of one model, on real sockets: who is asked, who is paid, what the client hears, what is written.

Each test has two providers of its own, whose health no other test touches: `a-<case>` and `b-<case>`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from urllib.request import urlopen

import pytest

from proxy.demo.script import Fin, Raw, Script, Send, Shape, Stall, Wait
from proxy.demo.shapes import DONE
from proxy.demo.shapes import sse as event
from proxy.gateway.upstream.health import FAILURES_MAX
from proxy.gateway.upstream.refusals import REFUSALS
from tests.crash.stage import Stage, quick_key, until
from tests.gateway.exchange.failures import B_COST, ERROR, FAILED_ANSWERS, FAILED_STREAMS, money
from tests.support.net import Response, chat_request, closed_port, connect
from tests.support.provider import ScriptedProvider, error_script, hangs_up, json_script, silent
from tests.support.tokenweir import COST, PRICE, Tokenweir, provider_section

TALE = Shape("openai", tokens=7)
CASES = (
    *FAILED_STREAMS, *FAILED_ANSWERS, "late-event", "last-fails", "empty-breaker", "narrow", "wide", "gone-held",
    "gone-alone", "own-error", "background", "long-page", "old-stream",
    "plain", "unreachable", "status-429", "status-500", "status-503", "status-529", "rest", "both", "broken", "hangs",
    "mute", "gone-cancel", "gone-drain", "killed", "breaker", "alias", "whole", "late", "client-error",
    "dead-key", "ms", *(f"status-{status}" for status in REFUSALS if status != 429),
)  # fmt: skip
Entry = dict[str, Any]


class Pair:
    """A deployment whose models each have two providers."""

    def __init__(self, tokenweir: Tokenweir, key: str, a: ScriptedProvider, b: ScriptedProvider) -> None:
        self.tokenweir = tokenweir
        self.key = key
        self.a = a
        self.b = b

    def plan(self, case: str, at_a: Script | Shape | None, at_b: Script | Shape | None) -> str:
        """What each says to this case; the model to ask for."""
        for provider, script in ((self.a, at_a), (self.b, at_b)):
            if script is not None:
                provider.script(case, script)
        return f"{case}/{case}"

    def asked(self, case: str) -> tuple[int, int]:
        """How often each was asked."""
        return len(self.a.log(case)), len(self.b.log(case))

    async def post(self, model: str, **more: Any) -> Response:
        """One request, to the end of its answer."""
        async with Stage(self.tokenweir, self.key) as stage:
            return await stage.whole(model, **more)

    def lines(self, exchange_id: str | None) -> list[Entry]:
        """Its entries, the terminal one first, once that is there."""

        def mine(entries: list[Entry]) -> list[Entry]:
            found = [one for one in entries if one["exchange_id"] == exchange_id]
            return sorted(found, key=lambda one: (one["kind"] != "usage", one["started_at"]))

        assert exchange_id is not None
        return mine(self.tokenweir.until(lambda entries: bool(mine(entries))))


def section(base_url: str, case: str) -> Entry:
    """Of a provider of this case."""
    options: Entry = {}
    if case == "late-event":
        options["timeouts"] = {"first_event_s": 0.2}
    elif case in ("narrow", "wide"):
        options["failover_on"] = [429] if case == "narrow" else [422]
    patience = {"timeouts": {"connect_s": 0.3, "first_byte_s": 0.3, "idle_s": 20, "total_s": 60}}
    if case in ("mute", "late"):
        options = patience
    return provider_section(base_url, on_client_disconnect="drain" if case == "gone-drain" else "cancel", **options)


@pytest.fixture(scope="module")
def pairs(
    tmp_path_factory: pytest.TempPathFactory, provider_process: ScriptedProvider
) -> Iterator[tuple[Tokenweir, str, ScriptedProvider]]:
    """The deployment, a key of it, and the second provider. In the end its ledger holds together."""
    second = ScriptedProvider()
    closed = f"http://127.0.0.1:{closed_port()}/v1"
    providers, models = {}, {}
    for case in CASES:
        first_url = closed if case in ("unreachable", "late") else provider_process.base_url
        providers |= {f"a-{case}": section(first_url, case), f"b-{case}": section(second.base_url, case)}
        targets = [{"provider": f"a-{case}", "cost": COST}, {"provider": f"b-{case}", "cost": B_COST}]
        models[f"{case}/*"] = {"providers": targets[:1] if case == "gone-alone" else targets, "price": PRICE}
    models["alias-of-one"] = {"alias_of": "one"}
    models["one"] = {"provider": "a-alias", "upstream_model": "alias", "price": PRICE}
    tokenweir = Tokenweir(tmp_path_factory.mktemp("pairs"), providers=providers, models=models)
    key = quick_key(tokenweir)
    try:
        yield tokenweir.start(), key, second
        assert tokenweir.unreconciled() == []
        assert tokenweir.stop() == 0
        assert "Traceback" not in tokenweir.log.read_text()
    finally:
        tokenweir.close()
        second.close()


@pytest.fixture
def pair(pairs: tuple[Tokenweir, str, ScriptedProvider], provider: ScriptedProvider) -> Pair:
    """The deployment, both providers without plans."""
    tokenweir, key, second = pairs
    second.reset()
    return Pair(tokenweir, key, provider, second)


def assert_failed_over(lines: list[Entry], case: str, *, status: int | None) -> None:
    """B has served and is paid, at the model's price for the client; what A did is a line that charges nothing."""
    served, attempt = lines
    assert (served["kind"], served["outcome"], served["provider"]) == ("usage", "served", f"b-{case}")
    assert Decimal(served["charge_usd"]) == money(served, PRICE) > 0
    assert Decimal(served["cost_usd"]) == money(served, B_COST)
    assert (attempt["kind"], attempt["provider"]) == ("attempt", f"a-{case}")
    assert (attempt["model"], attempt["upstream_model"]) == (served["model"], case)
    assert (attempt["charge_usd"], attempt["prompt_tokens"], attempt["completion_tokens"]) == ("0", None, None)
    may_be_billed = status is not None and (status >= 500 or status in (200, 408, 499))
    assert attempt["cost_usd"] == (None if may_be_billed else "0")
    assert attempt["details"].get("upstream_status") == status
    assert served["details"]["attempts"][0]["status"] == status
    assert attempt["duration_ms"] <= served["duration_ms"]


async def test_the_first_provider_is_asked_and_no_other(pair: Pair) -> None:
    response = await pair.post(pair.plan("plain", TALE, TALE))
    (served,) = pair.lines(response.header("x-tokenweir-exchange"))
    assert (served["provider"], Decimal(served["cost_usd"])) == ("a-plain", money(served, COST))
    assert "attempts" not in served["details"]
    assert pair.asked("plain") == (1, 0)


@pytest.mark.parametrize("status", [*REFUSALS, 500, 503, 529])
async def test_another_provider_answers_for_one_that_does_not(pair: Pair, status: int) -> None:
    case = f"status-{status}"
    if status == 529:  # not a stream
        response = await pair.post(pair.plan(case, error_script(status, "no"), TALE), stream=False)
    else:
        response = await pair.post(pair.plan(case, error_script(status, "no"), TALE))
    assert (response.status, response.ended) == (200, "complete")
    assert_failed_over(pair.lines(response.header("x-tokenweir-exchange")), case, status=status)
    assert pair.asked(case) == (1, 1)


async def test_a_provider_that_cannot_be_reached_was_not_asked(pair: Pair) -> None:
    response = await pair.post(pair.plan("unreachable", None, TALE))
    lines = pair.lines(response.header("x-tokenweir-exchange"))
    assert_failed_over(lines, "unreachable", status=None)
    assert lines[1]["details"]["failed"].startswith("not connected")
    assert pair.asked("unreachable") == (0, 1)


async def test_who_wants_to_be_left_alone_is(pair: Pair) -> None:
    model = pair.plan("rest", error_script(429, "later", (("Retry-After", "60"),)), TALE)
    responses = [await pair.post(model) for _ in range(3)]
    assert [one.status for one in responses] == [200] * 3
    assert pair.asked("rest") == (1, 3)
    first, *later = (pair.lines(one.header("x-tokenweir-exchange")) for one in responses)
    assert_failed_over(first, "rest", status=429)
    assert [len(lines) for lines in later] == [1, 1], "it was not asked"


async def test_a_dead_key_is_not_tried_again_at_once(pair: Pair) -> None:
    model = pair.plan("dead-key", error_script(401, "no such key"), TALE)
    responses = [await pair.post(model) for _ in range(3)]
    assert [one.status for one in responses] == [200] * 3
    assert pair.asked("dead-key") == (1, 3)
    log = pair.tokenweir.log.read_text()
    assert log.count("provider a-dead-key: the operator's key is not accepted (401)") == 1


async def test_a_rest_may_be_stated_in_milliseconds(pair: Pair) -> None:
    model = pair.plan("ms", error_script(429, "later", (("Retry-After-Ms", "60000"), ("Retry-After", "0"))), TALE)
    assert [(await pair.post(model)).status for _ in range(2)] == [200, 200]
    assert pair.asked("ms") == (1, 2)


async def test_with_nobody_left_the_client_hears_the_last_and_then_when_to_come_back(pair: Pair) -> None:
    model = pair.plan(
        "both",
        error_script(503, "first is full", (("Retry-After", "90"),)),
        error_script(429, "second is full", (("Retry-After", "30"),)),
    )
    response = await pair.post(model)
    assert (response.status, response.header("retry-after")) == (429, "30")
    assert b"second is full" in response.body
    last, attempt = pair.lines(response.header("x-tokenweir-exchange"))
    assert (last["outcome"], last["provider"], last["charge_usd"]) == ("refused_upstream", "b-both", "0")
    assert (attempt["provider"], attempt["cost_usd"], attempt["details"]["cost_unknown"]) == ("a-both", None, True)
    refused = await pair.post(model)
    assert (refused.status, refused.header("x-tokenweir-exchange")) == (503, None)
    assert b'"no_provider"' in refused.body
    assert 25 <= int(refused.header("retry-after") or 0) <= 30
    assert pair.asked("both") == (1, 1)


async def test_a_refusal_of_the_request_is_the_answer(pair: Pair) -> None:
    response = await pair.post(pair.plan("client-error", error_script(422, "no such parameter"), TALE))
    assert response.status == 422
    assert pair.asked("client-error") == (1, 0)


@pytest.mark.parametrize(
    ("case", "script", "status"),
    [
        ("broken", Script(steps=(Send(event({"choices": [{"index": 0, "delta": {"content": "a"}}]})), Fin())), 200),
        ("hangs", hangs_up(), 502),
        ("mute", silent(), 504),
    ],
)
async def test_what_may_have_been_served_is_not_asked_for_again(
    pair: Pair, case: str, script: Script, status: int
) -> None:
    """After the first byte, and after a request that went: broken off or silent, that was it."""
    response = await pair.post(pair.plan(case, script, TALE))
    assert response.status == status
    (line,) = pair.lines(response.header("x-tokenweir-exchange"))
    assert line["provider"] == f"a-{case}"
    assert pair.asked(case) == (1, 0)


@pytest.mark.parametrize("case", [*FAILED_STREAMS, *FAILED_ANSWERS])
async def test_another_provider_answers_for_one_whose_answer_has_failed(pair: Pair, case: str) -> None:
    script = FAILED_STREAMS.get(case)
    model = pair.plan(case, script or FAILED_ANSWERS[case], TALE)
    response = await pair.post(model, stream=script is not None)
    assert (response.status, response.ended) == (200, "complete")
    assert b"overloaded" not in response.body
    lines = pair.lines(response.header("x-tokenweir-exchange"))
    assert_failed_over(lines, case, status=200)
    assert lines[1]["details"]["failed"] in ("error_event", "error_body", "empty_answer")
    assert pair.asked(case) == (1, 1)


async def test_what_came_first_is_not_waited_for_longer_than_set(pair: Pair) -> None:
    """From then on the client has the head, and the stream stays with this provider."""
    model = pair.plan("late-event", Script(steps=(Wait(700), Send(event(ERROR)), Send(DONE))), TALE)
    async with Stage(pair.tokenweir, pair.key) as stage:
        client = await stage.ask(model)
        response = await client.read_head(0.6)
        await client.read_body(response)
    assert b"overloaded" in response.body
    (line,) = pair.lines(response.header("x-tokenweir-exchange"))
    assert (line["outcome"], line["provider"]) == ("upstream_failed", "a-late-event")
    assert pair.asked("late-event") == (1, 0)


async def test_the_last_one_s_failure_is_the_answer(pair: Pair) -> None:
    script = FAILED_STREAMS["error-event"]
    response = await pair.post(pair.plan("last-fails", script, script))
    assert (response.status, response.body.count(b"overloaded")) == (200, 2), "both members of one event"
    last, attempt = pair.lines(response.header("x-tokenweir-exchange"))
    assert (last["outcome"], last["provider"], last["charge_usd"]) == ("upstream_failed", "b-last-fails", "0")
    assert (attempt["provider"], attempt["cost_usd"]) == ("a-last-fails", None)


async def test_answers_with_nothing_in_them_open_the_breaker(pair: Pair) -> None:
    model = pair.plan("empty-breaker", FAILED_STREAMS["only-done"], TALE)
    for _ in range(FAILURES_MAX + 1):
        assert (await pair.post(model)).status == 200
    assert pair.asked("empty-breaker") == (FAILURES_MAX, FAILURES_MAX + 1)


async def test_a_provider_may_fail_over_after_less(pair: Pair) -> None:
    for script in (FAILED_STREAMS["error-event"], error_script(500, "broken")):
        await pair.post(pair.plan("narrow", script, TALE))
    assert pair.asked("narrow") == (2, 0)


async def test_a_provider_may_fail_over_after_more(pair: Pair) -> None:
    assert (await pair.post(pair.plan("wide", error_script(422, "not here"), TALE))).status == 200
    assert pair.asked("wide") == (1, 1)


async def test_who_leaves_while_the_first_event_is_waited_for_pays_as_with_one_provider(pair: Pair) -> None:
    """The provider has accepted the request: the prompt is to be paid."""
    left = []
    for case in ("gone-held", "gone-alone"):
        model = pair.plan(case, Script(steps=(Stall(),)), TALE)
        async with Stage(pair.tokenweir, pair.key) as stage:
            client = await stage.ask(model)
            await until(lambda case=case: pair.asked(case) == (1, 0))  # type: ignore[misc]
            await asyncio.sleep(0.2)
            client.close()
            entries = await asyncio.to_thread(pair.tokenweir.entries_of, model)
        left += entries
        assert pair.asked(case) == (1, 0)
    held, alone = left
    assert held["outcome"] == alone["outcome"] == "client_left"
    assert Decimal(held["charge_usd"]) == Decimal(alone["charge_usd"]) > 0
    assert (held["prompt_tokens"], held["usage_source"]) == (alone["prompt_tokens"], "estimated")


async def test_a_client_s_own_error_breaks_no_provider(pair: Pair) -> None:
    wrong = event({"error": {"message": "maximum context length", "type": "BadRequestError", "code": 400}})
    script = Script(steps=(Send(wrong), Send(DONE)))
    model = pair.plan("own-error", script, script)
    for _ in range(FAILURES_MAX + 1):
        assert b"maximum context" in (await pair.post(model)).body
    assert pair.asked("own-error") == (FAILURES_MAX + 1, 0)


async def test_a_background_answer_is_asked_for_once(pair: Pair) -> None:
    queued = {"id": "resp_1", "object": "response", "status": "queued", "background": True, "output": [], "usage": None}
    model = pair.plan("background", json_script(queued), json_script(queued))
    request = {"model": model, "input": "hi", "background": True, "store": True}
    for _ in range(FAILURES_MAX + 1):
        async with await connect(pair.tokenweir.url) as client:
            await client.send(chat_request(request, path="/v1/responses", key=pair.key))
            assert b"resp_1" in (await client.read()).body
    assert pair.asked("background") == (FAILURES_MAX + 1, 0)


async def test_a_long_page_instead_of_an_answer_opens_the_breaker(pair: Pair) -> None:
    """It is relayed, since it is too long to be held; later requests go to the next provider."""
    page = Script(steps=(Send(b"<html>" + b"x" * 20_000),), headers=(("Content-Type", "text/html"),))
    model = pair.plan("long-page", page, TALE)
    for _ in range(FAILURES_MAX + 1):
        await pair.post(model)
    assert pair.asked("long-page") == (FAILURES_MAX, 1)


async def test_an_old_stream_that_ends_well_hides_no_failures(pair: Pair) -> None:
    slow = Script(steps=(Send(event({"choices": [{"index": 0, "delta": {"content": "a"}}]})), Wait(1_500), Send(DONE)))
    async with Stage(pair.tokenweir, pair.key) as stage:
        _, response = await stage.begin(pair.plan("old-stream", slow, TALE))
        assert response.status == 200
        model = pair.plan("old-stream", error_script(500, "broken"), TALE)
        for _ in range(FAILURES_MAX - 1):
            await pair.post(model)
        await asyncio.sleep(1.7)
        for _ in range(2):
            await pair.post(model)
    assert pair.asked("old-stream")[0] == FAILURES_MAX + 1, "the fifth failure has opened it"


@pytest.mark.parametrize("case", ["gone-cancel", "gone-drain"])
async def test_for_a_client_that_left_nobody_else_is_asked(pair: Pair, case: str) -> None:
    refusal = b"HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    model = pair.plan(case, Script(steps=(Wait(250), Raw(refusal), Fin()), framing="raw"), TALE)
    async with Stage(pair.tokenweir, pair.key) as stage:
        client = await stage.ask(model)
        await until(lambda: pair.asked(case) == (1, 0))
        client.close()
        entries = await asyncio.to_thread(
            pair.tokenweir.until, lambda entries: any(one["model"] == model for one in entries)
        )
    (line,) = [one for one in entries if one["model"] == model]
    assert (line["provider"], line["charge_usd"]) == (f"a-{case}", "0")
    assert pair.asked(case) == (1, 0)


async def test_the_next_provider_has_its_own_time_to_begin(pair: Pair) -> None:
    """Its first byte is waited for from when it was asked."""
    response = await pair.post(pair.plan("late", None, silent()))
    assert response.status == 504
    last, attempt = pair.lines(response.header("x-tokenweir-exchange"))
    assert (last["outcome"], last["provider"]) == ("upstream_stalled", "b-late")
    assert attempt["provider"] == "a-late"
    assert last["duration_ms"] - attempt["duration_ms"] >= 240


async def test_a_provider_that_fails_again_and_again_is_spared(pair: Pair) -> None:
    model = pair.plan("breaker", error_script(500, "broken"), TALE)
    for _ in range(FAILURES_MAX):
        assert (await pair.post(model)).status == 200
    assert pair.asked("breaker") == (FAILURES_MAX, FAILURES_MAX)
    response = await pair.post(model)
    assert len(pair.lines(response.header("x-tokenweir-exchange"))) == 1
    assert pair.asked("breaker") == (FAILURES_MAX, FAILURES_MAX + 1)
    with urlopen(f"{pair.tokenweir.url}/metrics", timeout=5) as answer:
        seen = answer.read().decode().splitlines()
    assert 'tokenweir_provider_breaker{provider="a-breaker",state="open"} 1.0' in seen
    assert 'tokenweir_provider_breaker{provider="b-breaker",state="closed"} 1.0' in seen
    assert f'tokenweir_failed_attempts_total{{provider="a-breaker",reason="failed"}} {FAILURES_MAX}.0' in seen


async def test_an_alias_is_the_model_under_another_name(pair: Pair) -> None:
    pair.a.script("alias", TALE)
    response = await pair.post("alias-of-one")
    (line,) = pair.lines(response.header("x-tokenweir-exchange"))
    assert (line["model"], line["upstream_model"], line["provider"]) == ("alias-of-one", "alias", "a-alias")
    assert Decimal(line["charge_usd"]) == money(line, PRICE)


@pytest.mark.thorough
async def test_a_kill_while_the_second_is_asked_leaves_one_exchange_with_both(pair: Pair) -> None:
    """Settled once, by who had it; what the first did is not forgotten."""
    model = pair.plan("killed", error_script(503, "busy"), silent())
    async with Stage(pair.tokenweir, pair.key) as stage:
        await stage.ask(model)
        await until(lambda: pair.asked("killed") == (1, 1))
        pair.tokenweir.kill()
    pair.tokenweir.start()
    entries = pair.tokenweir.until(lambda entries: any(one["model"] == model for one in entries))
    mine = sorted((one for one in entries if one["model"] == model), key=lambda one: one["kind"])
    assert [(one["kind"], one["provider"]) for one in mine] == [("attempt", "a-killed"), ("usage", "b-killed")]
    assert len({one["exchange_id"] for one in mine}) == 1
    assert (mine[1]["outcome"], mine[1]["charge_usd"], mine[1]["cost_usd"]) == ("crashed", "0", "0")
