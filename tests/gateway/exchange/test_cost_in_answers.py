"""Answers that tell what they cost: the ledger's number, to the nano-dollar, in the usage and nowhere else."""

from __future__ import annotations

import gzip
import json
import re
from decimal import Decimal
from typing import Any

import pytest

from proxy.demo.script import Cut, Script, Send, json_script
from tests.gateway.deployment import SOON_S, Deployment
from tests.gateway.dialects.languages import MESSAGES, RESPONSES, Language
from tests.gateway.exchange.priced import Priced
from tests.gateway.streams import told as events_told
from tests.metering.fixtures import CHAT_USAGE, chunk, say, sse, usage
from tests.support.net import Response, ask, post_chat
from tests.support.sse import without_usage_event

pytestmark = pytest.mark.process

ASKED = {"usage": {"include": True}}
ADDED = re.compile(rb',?"cost":([0-9.]+),"cost_details":(\{[^{}]*\})')
STREAM = b"".join(events_told("openai", 7))
PLAIN = json.dumps({
    "id": "c", "choices": [{"index": 0, "message": {"content": "Rain."}, "finish_reason": "stop"}], "usage": CHAT_USAGE,
}).encode()  # fmt: skip


def answer(body: bytes, kind: str = "application/json", **more: Any) -> Script:
    return Script(steps=(Send(body),), headers=(("Content-Type", kind),), **more)


async def post(
    deployment: Deployment, document: dict[str, Any], path: str = "/v1/chat/completions", key: str = ""
) -> Response:
    return await post_chat(deployment.url, document, timeout_s=SOON_S, path=path, key=key or deployment.key)


async def told(deployment: Deployment, response: Response, body: bytes, model: str) -> dict[str, Any]:
    """The entry, if the answer tells its charge once, and is `body` otherwise."""
    entry = await deployment.entry(model)
    ((cost, details),) = ADDED.findall(response.body)
    assert cost.decode() == entry["charge_usd"]
    assert json.loads(details) == {
        "currency": "USD", "exchange_id": entry["exchange_id"], "price_version": entry["price_version"],
    }  # fmt: skip
    assert ADDED.sub(b"", response.body) == body
    assert response.ended == "complete"
    return entry


@pytest.mark.parametrize("wire", [Cut(whole=True), Cut(size=1), Cut(size=700)], ids=["whole", "bytes", "parts"])
async def test_who_asks_gets_the_usage_of_a_stream_with_its_cost(deployment: Deployment, wire: Cut) -> None:
    model = deployment.plan("cancel", answer(STREAM, "text/event-stream", wire=wire))
    response = await post(deployment, ask(model) | ASKED)
    entry = await told(deployment, response, STREAM, model)
    assert (entry["outcome"], entry["usage_source"], entry["bytes"]) == ("served", "reported", len(response.body))
    assert entry["charge_usd"] != entry["cost_usd"]
    (seen,) = deployment.seen(model)
    assert "usage" not in seen["body"]
    assert seen["body"]["stream_options"] == {"include_usage": True}


async def test_who_does_not_ask_gets_what_it_got_before(deployment: Deployment) -> None:
    model = deployment.plan("cancel", answer(STREAM, "text/event-stream"))
    for more in ({}, {"usage": None}, {"usage": {"include": False}}):
        response = await post(deployment, ask(model) | more)
        assert response.body == without_usage_event(STREAM)
    assert all("usage" not in seen["body"] for seen in deployment.seen(model))


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
@pytest.mark.parametrize("more", [b"", b" " * 300_000], ids=["short", "long"])
async def test_a_json_answer_tells_its_cost_in_every_framing(deployment: Deployment, framing: str, more: bytes) -> None:
    body = PLAIN[:1] + more + PLAIN[1:]
    model = deployment.plan("cancel", answer(body, framing=framing, wire=Cut(size=90_000)))
    response = await post(deployment, ask(model, stream=False) | ASKED)
    entry = await told(deployment, response, body, model)
    assert (entry["outcome"], entry["bytes"]) == ("served", len(response.body))


async def test_a_repeated_request_gets_the_same_bytes(priced: Priced) -> None:
    for framing in ("length", "chunked"):
        model = "once/" + priced.provider.script(f"cost-{framing}", answer(PLAIN, framing=framing))
        document = ask(model, stream=False) | ASKED
        named = {"Idempotency-Key": f"cost-{framing}"}
        first, second = [await priced.post(document, **named) for _ in range(2)]
        assert ADDED.search(first.body)
        assert second.body == first.body
        assert len(priced.entries_of(model)) == 1


FAMILIES: list[tuple[str, Language | None, dict[str, Any]]] = [
    ("/v1/messages", MESSAGES, {}),
    ("/v1/responses", RESPONSES, {}),
    ("/v1/fim/completions", None, {"prompt": "a"}),
    ("/v1/completions", None, {"prompt": "a"}),
    ("/openai/v1/chat/completions", None, {"messages": [{"role": "user", "content": "a"}]}),
]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(("path", "language", "document"), FAMILIES, ids=[path for path, _, _ in FAMILIES])
async def test_every_family_tells_it(
    deployment: Deployment, path: str, language: Language | None, document: dict[str, Any], stream: bool
) -> None:
    body = STREAM if stream else PLAIN
    if language is not None:
        body = b"".join(language.events) if stream else json.dumps(language.answer).encode()
        document = language.asked
    model = deployment.plan("many", answer(body, "text/event-stream" if stream else "application/json"))
    asked = {**document, "model": model, "stream": stream, **ASKED}
    response = await post(deployment, asked, path)
    await told(deployment, response, body, model)
    assert "usage" not in deployment.seen(model)[0]["body"]


async def test_embeddings_tell_it(deployment: Deployment) -> None:
    vectors = [{"object": "embedding", "index": at, "embedding": [0.125] * 900} for at in range(30)]
    body = json.dumps({"data": vectors, "usage": {"prompt_tokens": 300, "total_tokens": 300}}).encode()
    model = deployment.plan("many", answer(body))
    response = await post(deployment, {"model": model, "input": "a", **ASKED}, "/v1/embeddings")
    await told(deployment, response, body, model)


@pytest.mark.parametrize("level", ["key", "project", "organization"])
async def test_a_setting_tells_it_to_all_who_get_a_usage(deployment: Deployment, level: str) -> None:
    running, on = deployment.tokenweir, "--cost-in-answers"
    running.said("accounts", "create-organization", f"org-{level}", *([on] if level == "organization" else []))
    more = [on] if level == "project" else []
    running.said("accounts", "create-project", f"project-{level}", "--organization", f"org-{level}", *more)
    key = running.key(f"told-{level}", "--project", f"project-{level}", *([on] if level == "key" else []))
    model = deployment.plan("cancel", json_script(json.loads(PLAIN)))
    response = await post(deployment, ask(model, stream=False), key=key)
    assert json.loads(response.body)["usage"]["cost"] == float((await deployment.entry(model))["charge_usd"])
    model = deployment.plan("cancel", answer(STREAM, "text/event-stream"))
    await told(deployment, await post(deployment, ask(model, usage=True), key=key), STREAM, model)
    model = deployment.plan("cancel", answer(STREAM, "text/event-stream"))
    assert (await post(deployment, ask(model), key=key)).body == without_usage_event(STREAM), (
        "a client may not expect it"
    )


UNPRICED = json.dumps({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}).encode()
ESTIMATED = sse(
    *say("It", " rains", " much"), chunk(finish="stop"), {"choices": [], "usage": {"total_tokens": 9}}, "[DONE]"
)


@pytest.mark.parametrize(
    ("policy", "body", "kind", "headers"),
    [
        ("unpriced", UNPRICED, "application/json", ()),
        ("cancel", ESTIMATED, "text/event-stream", ()),
        ("cancel", sse(*say("It", usage=usage(9, 1, 10)), "[DONE]"), "text/event-stream", ()),
        ("cancel", PLAIN[:-1], "application/json", ()),
        ("cancel", gzip.compress(PLAIN), "application/json", (("Content-Encoding", "gzip"),)),
        ("cancel", gzip.compress(STREAM), "text/event-stream", (("Content-Encoding", "gzip"),)),
    ],
    ids=["unpriced", "estimated", "running count", "bad JSON", "compressed", "compressed stream"],
)  # fmt: skip
async def test_no_number_is_told_where_the_ledger_may_have_another(
    deployment: Deployment, policy: str, body: bytes, kind: str, headers: tuple[tuple[str, str], ...]
) -> None:
    script = Script(steps=(Send(body),), headers=(("Content-Type", kind), *headers))
    model = deployment.plan(policy, script)
    response = await post(deployment, ask(model, stream="event" in kind) | ASKED)
    assert response.body == body
    await deployment.entry(model)


@pytest.mark.parametrize(("wrong", "field"), [(True, "usage"), ({"include": "yes"}, "usage.include")])
async def test_a_wrong_request_is_refused(deployment: Deployment, wrong: object, field: str) -> None:
    response = await post(deployment, ask("cancel/x") | {"usage": wrong})
    error = json.loads(response.body)["error"]
    assert (response.status, error["param"], error["code"]) == (400, field, "invalid_value")
    assert field in error["message"]


# -- the customer's price, whatever it depends on ----------------------------------------------------------------


async def test_it_is_the_customer_s_price_after_all_rules(priced: Priced) -> None:
    keys = [priced.key("anne", "--project", "of-sevenths", "--budget", "5"), priced.key("rob")]
    stated = {"cost": 0.000123457, "cost_details": {"upstream_inference_cost": 0.0001}}
    plans: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
        "plain": ("tiered/", usage(333, 77, 410), {}),
        "long": ("tiered/", usage(777, 77, 854), {}),
        "priority": ("tiered/", usage(333, 77, 410), {"service_tier": "priority"}),
        "states": ("router/", usage(333, 77, 410, **stated), {}),
        "partial": ("partly/", usage(333, 77, 410), {}),
    }
    expected: dict[str, str] = {}
    for name, (prefix, used, more) in plans.items():
        text = {"id": "c", **more}
        body = sse(
            chunk({"content": "It"}, **more),
            chunk(finish="stop", **more),
            text | {"choices": [], "usage": used},
            "[DONE]",
        )
        model = prefix + priced.provider.script(name, answer(body, "text/event-stream"))
        for key in keys:
            response = await priced.post(ask(model) | ASKED, key=key)
            told_usage = json.loads(next(line for line in response.body.split(b"\n") if b"price_version" in line)[6:])
            expected[told_usage["usage"]["cost_details"]["exchange_id"]] = str(
                Decimal(repr(told_usage["usage"]["cost"]))
            )
            assert "upstream_inference_cost" not in told_usage["usage"]["cost_details"]
    entries = priced.until(lambda entries: expected.keys() <= {entry["exchange_id"] for entry in entries})
    charged = {entry["exchange_id"]: f"{Decimal(entry['charge_usd'])}" for entry in entries}
    assert {exchange_id: charged[exchange_id] for exchange_id in expected} == expected
    assert len({Decimal(cost) for cost in expected.values()}) == len(expected), "each of them matters"
    assert all(seen["body"]["usage"] == {"include": True} for seen in priced.provider.log("states"))
    assert all("usage" not in seen["body"] for seen in priced.provider.log("plain"))
