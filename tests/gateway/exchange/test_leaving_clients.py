"""A client that leaves, however and whenever: one entry, the right outcome, and the provider stopped or drained.

Matrix: three ways to leave × every point of an answer × both policies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.demo.script import AnyStep, Script, Send, Stall, Wait
from proxy.demo.shapes import DONE
from proxy.gateway.exchange import exchange
from proxy.http.server import wait_until
from tests.gateway.deployment import SMALL_TOKENS, SOON_S, Deployment, charge, nusd
from tests.gateway.inprocess import gateway
from tests.gateway.streams import told
from tests.support import sse
from tests.support.examples import repeats
from tests.support.net import RawClient, ask, chat_request, connect
from tests.support.provider import ScriptedProvider, sends

EVENTS = told("openai", 5)
REPORTED = (21, 5)
# Longer than a client needs to leave on a loaded machine: what is sent after it, nobody reads.
LONG_MS = 500

Leave = Callable[[RawClient], None]
LEAVES = {"close": RawClient.close, "reset": RawClient.reset, "half-close": RawClient.half_close}


async def leave_after(deployment: Deployment, model: str, body: bytes, leave: Leave) -> int:
    """Ask, read until all of `body` is there, leave. How many events the client got."""
    client = await deployment.begin(model, usage=True)
    got = b""
    if body:
        response = await client.read_body(await client.read_head(SOON_S), until=body, timeout_s=SOON_S)
        got = response.body
    else:
        await deployment.seen_until(model, "started_at")
    leave(client)
    if leave is RawClient.half_close:
        await client.read_to_end(SOON_S)
        client.close()
    return len(sse.data_events(got))


def settled(entry: dict[str, Any], events_got: int) -> None:
    """What holds of the entry of every client that left."""
    assert entry["kind"] == "usage"
    assert entry["events"] >= events_got
    if events_got:
        assert entry["usage_source"] in ("reported", "estimated")
        assert entry["prompt_tokens"] > 0
        assert nusd(entry) > 0
    assert nusd(entry) == charge(entry)


@pytest.mark.parametrize("how", LEAVES)
async def test_cancel_stops_the_provider_at_once_at_every_point(deployment: Deployment, how: str) -> None:
    """After each event the provider is silent for ever: only the leaving itself can end the exchange."""

    async def leaving_after(count: int) -> None:
        model = deployment.plan("cancel", [*sends(EVENTS[:count]), Stall()])
        got = await leave_after(deployment, model, b"".join(EVENTS[:count]), LEAVES[how])
        assert (await deployment.seen_until(model, "duration_s"))["ended"] == "client_left"
        entry = await deployment.entry(model)
        settled(entry, got)
        assert got == count
        seen = b"".join(EVENTS[:count])
        if DONE in EVENTS[:count]:
            assert (entry["outcome"], entry["usage_source"]) == ("served", "reported")
        else:
            assert (entry["outcome"], entry["details"]["policy"]) == ("client_left", "cancel")
            assert entry["usage_source"] == ("reported" if sse.usage(seen) else "estimated")
        if sse.usage(seen):
            assert (entry["prompt_tokens"], entry["completion_tokens"]) == REPORTED
        elif sse.text(seen):
            assert entry["completion_tokens"] >= 1

    await asyncio.gather(*(leaving_after(count) for count in range(1, len(EVENTS) + 1)))


@pytest.mark.parametrize("how", LEAVES)
async def test_drain_reads_on_for_the_bill_at_every_point(deployment: Deployment, how: str) -> None:
    async def leaving_after(count: int) -> None:
        model = deployment.plan("drain", [*sends(EVENTS[:count]), Wait(LONG_MS), *sends(EVENTS[count:])])
        got = await leave_after(deployment, model, b"".join(EVENTS[:count]), LEAVES[how])
        entry = await deployment.entry(model)
        settled(entry, got)
        assert entry["outcome"] == ("served" if count == len(EVENTS) else "client_left")
        assert entry["usage_source"] == "reported"
        assert (entry["prompt_tokens"], entry["completion_tokens"], entry["finish_reason"]) == (*REPORTED, "stop")
        assert entry["events"] == got == count  # what came after it left was never on its way to it
        # After [DONE] there is nothing left to drain.
        ended = "served" if count < len(EVENTS) else "client_left"
        assert (await deployment.seen_until(model, "duration_s"))["ended"] == ended

    await asyncio.gather(*(leaving_after(count) for count in range(1, len(EVENTS) + 1)))


@pytest.mark.parametrize("how", LEAVES)
async def test_leaving_before_the_head(deployment: Deployment, how: str) -> None:
    slow = Script(steps=tuple(sends(EVENTS)), delay_ms=LONG_MS)
    silent = Script(steps=(Stall(),), framing="raw")
    cancelled = deployment.plan("cancel", silent)
    drained = deployment.plan("drain", slow)
    drained_in_vain = deployment.plan("drain-briefly", silent)
    models = (cancelled, drained, drained_in_vain)
    await asyncio.gather(*(leave_after(deployment, model, b"", LEAVES[how]) for model in models))
    entries = [await deployment.entry(model) for model in models]
    assert [entry["outcome"] for entry in entries] == ["client_left"] * 3
    assert [(entry["events"], entry["bytes"]) for entry in entries] == [(0, 0)] * 3
    assert [entry["usage_source"] for entry in entries] == ["none", "reported", "none"]
    assert [entry["details"]["situation"] for entry in entries] == ["not_accepted", "client_left", "not_accepted"]
    assert [nusd(entry) for entry in entries] == [0, charge(entries[1]), 0]
    for model in (cancelled, drained_in_vain):
        assert (await deployment.seen_until(model, "duration_s"))["ended"] == "client_left"


@pytest.mark.parametrize("at", [1, 30, 130, -1])
async def test_leaving_in_mid_event_is_never_free(deployment: Deployment, at: int) -> None:
    """One content byte is enough; and what is left unfinished was still generated."""
    model = deployment.plan("cancel", [*sends(EVENTS[:2]), Send(EVENTS[2][:at]), Stall()])
    got = await leave_after(deployment, model, b"".join(EVENTS[:2]) + EVENTS[2][:at], RawClient.reset)
    entry = await deployment.entry(model)
    settled(entry, got)
    assert entry["completion_tokens"] >= 1
    assert entry["bytes"] == len(b"".join(EVENTS[:2])) + len(EVENTS[2][:at])


async def test_an_estimate_is_not_above_the_models_limit_unless_more_was_seen(deployment: Deployment) -> None:
    for asked, events in (({}, 3), ({"max_tokens": 400}, 3), ({}, 6), ({"max_tokens": 1}, 6)):
        model = deployment.plan("small", [*sends(EVENTS[:events]), Stall()])
        client = await deployment.begin(model, usage=True, **asked)
        await client.read_body(await client.read_head(SOON_S), until=b"".join(EVENTS[:events]), timeout_s=SOON_S)
        client.close()
        entry = await deployment.entry(model)
        texts = entry["details"]["evidence"]["text_events"]
        assert (entry["usage_source"], texts) == ("estimated", events - 1), "the first one has the role"
        tokens, flags = entry["completion_tokens"], {"capped", "limit_exceeded"} & entry["details"].keys()
        assert (tokens, flags) == ((SMALL_TOKENS, {"capped"}) if events == 3 else (texts + 1, {"limit_exceeded"}))


async def test_an_estimate_for_a_model_that_hides_its_reasoning_says_so(deployment: Deployment) -> None:
    model = deployment.plan("cancel", [*sends(EVENTS[:4]), Stall()], name="o3")
    await leave_after(deployment, model, b"".join(EVENTS[:4]), RawClient.close)
    entry = await deployment.entry(model)
    assert (entry["usage_source"], entry["details"]["hidden_reasoning"]) == ("estimated", 0)
    assert entry["details"]["expected_error"] == 0.9


@pytest.mark.parametrize(
    ("policy", "ended_by", "then"),
    [
        ("drain-briefly", "seconds", [Stall()]),
        ("drain-little", "tokens", [Wait(100), *(one for e in told("tera", 4000)[:-2] for one in (Send(e), Wait(1)))]),
    ],
    ids=["seconds", "tokens"],
)
async def test_a_drain_ends_after_its(deployment: Deployment, policy: str, ended_by: str, then: list[AnyStep]) -> None:
    model = deployment.plan(policy, [*sends(EVENTS[:2]), *then])
    got = await leave_after(deployment, model, b"".join(EVENTS[:2]), RawClient.close)
    entry = await deployment.entry(model)
    settled(entry, got)
    assert (entry["outcome"], entry["usage_source"]) == ("client_left", "estimated")
    assert (entry["details"]["policy"], entry["details"]["drain_ended_by"]) == ("drain", ended_by)
    if ended_by == "seconds":
        assert entry["duration_ms"] >= 400
    else:
        assert 20 <= entry["completion_tokens"] <= 200  # the bound, and what comes between two looks
    assert (await deployment.seen_until(model, "duration_s"))["ended"] == "client_left"


async def test_a_drain_that_breaks_is_billed_for_what_it_saw(deployment: Deployment) -> None:
    ways: dict[str, Script] = {
        "cut": Script(steps=(*sends(EVENTS[:3]), Wait(LONG_MS)), framing="length", declared_length=9999),
        "error": Script(steps=(*sends(EVENTS[:3]), Wait(LONG_MS), Send(b'data: {"error":{"message":"no"}}\n\n'))),
    }
    models = [deployment.plan("drain", plan, name) for name, plan in ways.items()]
    got = await asyncio.gather(
        *(leave_after(deployment, model, b"".join(EVENTS[:3]), RawClient.close) for model in models)
    )
    for model, events in zip(models, got, strict=True):
        entry = await deployment.entry(model)
        settled(entry, events)
        assert (entry["outcome"], entry["usage_source"]) == ("client_left", "estimated")


async def test_leaving_within_the_request_is_no_exchange(deployment: Deployment) -> None:
    model = deployment.plan("cancel", sends(EVENTS))
    request = deployment.request(model)
    for at in range(1, len(request), 29):
        client = await RawClient.connect("127.0.0.1", deployment.tokenweir.port)
        await client.send(request[:at])
        client.reset() if at % 2 else client.close()
    await deployment.post(model)
    await deployment.entry(model)
    assert len(deployment.seen(model)) == 1


@pytest.mark.hypothesis
async def test_a_crowd_that_leaves_at_random_loses_and_doubles_nothing(deployment: Deployment) -> None:
    """Many at once, each after some events of a running stream, without any silence to leave in."""

    async def leaving(policy: str, count: int) -> tuple[str, int]:
        steps = [step for event in EVENTS for step in (Send(event), Wait(2 + count))]
        model = deployment.plan(policy, steps)
        return model, await leave_after(deployment, model, b"".join(EVENTS[:count]), list(LEAVES.values())[count % 3])

    crowd = [(policy, 1 + n % len(EVENTS)) for policy in ("cancel", "drain") for n in range(repeats(40, gate=15))]
    left = await asyncio.gather(*(leaving(policy, count) for policy, count in crowd))
    for (policy, _), (model, got) in zip(crowd, left, strict=True):
        entry = await deployment.entry(model)
        settled(entry, got)
        assert entry["outcome"] in ("client_left", "served")
        if policy == "drain" or entry["outcome"] == "served":
            assert (entry["prompt_tokens"], entry["completion_tokens"]) == REPORTED


async def test_only_after_the_last_event_is_a_silence_short(
    tmp_path: Path, provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider that is silent between two events has its own limit; after the last one it need only close."""
    monkeypatch.setattr(exchange, "AFTER_DONE_S", 0.1)
    provider.script("electron", [*sends(EVENTS[:2]), Wait(400), *sends(EVENTS[2:]), Send(DONE), Stall()])
    async with gateway(tmp_path, provider.base_url) as made, await connect(made.url) as client:
        await client.send(chat_request(ask("electron", stream=True) | {"stream_options": {"include_usage": True}}))
        response = await client.read_body(await client.read_head())
        assert all(event in response.body for event in EVENTS)
        assert await wait_until(lambda: bool(made.outbox.records), deadline_s=10)
        assert [record.outcome for record in made.outbox.records] == ["served"]
