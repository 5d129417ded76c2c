"""A provider that fails: the client always sees that it did, nothing hangs, and the entry says what happened and why
it costs what it costs."""

from __future__ import annotations

import asyncio
import gzip
import json
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pytest

from proxy.demo.script import AnyStep, Fin, Raw, Reset, Script, Send, Stall, Wait
from proxy.demo.shapes import DONE, error_object
from proxy.demo.shapes import sse as event_of
from tests.gateway.deployment import Deployment, charge, nusd
from tests.gateway.streams import counts, cut_off, told, wire_of
from tests.support import provider as plans
from tests.support import sse
from tests.support.examples import AT_RANDOM
from tests.support.net import Response
from tests.support.tokenweir import Tokenweir

EVENTS = told("openai", 6)
CONTENT = EVENTS[:5]
"""begun and not finished: no reason, no usage, no end"""
FINISHED = EVENTS[:-2]
USAGE, END = EVENTS[-2:]
NONE = (None,) * 5


def sends(*events: bytes) -> tuple[AnyStep, ...]:
    return tuple(map(Send, events))


def usage_event(**usage: Any) -> bytes:
    return event_of({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12} | usage})


async def faulty(deployment: Deployment, plan: Script, policy: str = "cancel") -> tuple[Response, dict[str, Any]]:
    response, entry = await deployment.exchange(policy, plan)
    assert response.header("x-tokenweir-exchange") == entry["exchange_id"]
    assert Tokenweir.PROVIDER_KEY.encode() not in response.head + response.body
    return response, entry


def error_of(response: Response) -> dict[str, Any]:
    """The error of a refusal, in OpenAI's shape."""
    assert response.ended == "complete"
    assert response.header("content-type") == "application/json"
    error: dict[str, Any] = json.loads(response.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def unbilled(entry: dict[str, Any], outcome: str) -> None:
    assert (entry["outcome"], entry["usage_source"], counts(entry)) == (outcome, "none", NONE)
    assert (entry["charge_usd"], entry["cost_usd"]) == ("0", "0")


def delivered_only(entry: dict[str, Any], outcome: str) -> None:
    """What the client got is billed, by estimate, and the entry says so; the prompt is not."""
    assert (entry["outcome"], entry["usage_source"]) == (outcome, "estimated")
    assert entry["details"]["delivered_only"] is True
    assert nusd(entry) == charge(entry, prompt=False) > 0


# -- no answer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["refusing", "nowhere"])
async def test_a_provider_that_cannot_be_reached_is_a_502(deployment: Deployment, policy: str) -> None:
    response, entry = await faulty(deployment, Script(steps=()), policy)
    assert (response.status, error_of(response)["code"]) == (502, "upstream_failed")
    unbilled(entry, "upstream_failed")
    shown = response.body + json.dumps(entry["details"]).encode()
    assert b"127.0.0.1" not in shown
    assert b"no-such-host" not in shown


@pytest.mark.parametrize(
    "plan",
    [
        plans.hangs_up(),
        plans.garbage(),
        plans.garbage(b"\x00" * 70_000),
        plans.garbage(b"HTTP/1.1 banana OK\r\n\r\n"),
        plans.garbage(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
        plans.garbage(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"),
        plans.garbage(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"),
        plans.garbage(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n"),
        Script(steps=(Reset(),), framing="raw"),
        Script(steps=(), prelude=b"what? "),
    ],
    ids=["hang up", "tls", "zeros", "status", "two framings", "two lengths", "negative", "long", "reset", "prelude"],
)
async def test_an_answer_that_is_none_is_a_502(deployment: Deployment, plan: Script) -> None:
    response, entry = await faulty(deployment, plan)
    assert (response.status, error_of(response)["code"]) == (502, "upstream_failed")
    unbilled(entry, "upstream_failed")


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Type: te"], ids=["nothing", "half a head"])
async def test_silence_before_the_first_byte_is_a_504(deployment: Deployment, head: bytes) -> None:
    plan = Script(steps=(Raw(head), Stall()), framing="raw") if head else plans.silent()
    response, entry = await faulty(deployment, plan, "impatient")
    assert (response.status, error_of(response)["code"]) == (504, "upstream_stalled")
    unbilled(entry, "upstream_stalled")
    assert entry["duration_ms"] >= 300


# -- a stream that breaks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", ["chunked", "length"])
async def test_silence_within_a_stream_is_told_and_is_no_end(deployment: Deployment, framing: str) -> None:
    plan = Script(steps=(*sends(*CONTENT), Stall()), framing=framing, declared_length=9999)  # type: ignore[arg-type]
    response, entry = await faulty(deployment, plan, "impatient")
    assert response.ended in ("cut", "reset")
    *passed, last = sse.events(response.body)
    assert b"".join(event.wire for event in passed) == b"".join(CONTENT)
    assert last.json["error"]["code"] == "upstream_stalled"
    assert not sse.done(response.body)
    delivered_only(entry, "upstream_stalled")
    assert entry["details"]["limit"] == "idle_s"
    assert (entry["events"], entry["bytes"]) == (len(CONTENT) + 1, len(response.body))


async def test_silence_within_an_event_adds_nothing_to_it(deployment: Deployment) -> None:
    plan = Script(steps=(*sends(*CONTENT), Send(EVENTS[5][:40]), Stall()))
    response, entry = await faulty(deployment, plan, "impatient")
    assert response.ended in ("cut", "reset")
    assert (b"".join(CONTENT) + EVENTS[5]).startswith(response.body)
    assert sse.events(response.body)[-1].wire == CONTENT[-1]
    delivered_only(entry, "upstream_stalled")


async def test_a_stream_that_takes_too_long_is_ended(deployment: Deployment) -> None:
    slow = [step for event in told("openai", 200) for step in (Send(event), Wait(20))]
    response, entry = await faulty(deployment, Script(steps=tuple(slow)), "short")
    assert sse.events(response.body)[-1].json["error"]["code"] == "upstream_stalled"
    assert response.ended in ("cut", "reset")
    delivered_only(entry, "upstream_stalled")
    assert entry["details"]["limit"] == "total_s"


@pytest.mark.hypothesis
@pytest.mark.parametrize("how", ["fin", "reset"])
@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
async def test_broken_at_many_offsets(deployment: Deployment, framing: str, how: str) -> None:
    """Wherever the wire is cut: a truncated body for the client, a prefix of the provider's, and one true entry."""
    wire = wire_of(plans.sse_script(EVENTS) if framing == "chunked" else framed(framing))
    head = wire.index(b"\r\n\r\n") + 4
    # A reset may overtake what the receiver has not read yet: give it the time to.
    end = (Fin(),) if how == "fin" else (Wait(60), Reset())
    offsets = sorted({*range(1, len(wire), 31 if AT_RANDOM else 97), head - 1, head, head + 1, len(wire) - 1})
    models = [deployment.plan("always", cut_off(wire, at, *end)) for at in offsets]
    responses = await asyncio.gather(*(deployment.post(model, usage=True) for model in models))
    body = b"".join(EVENTS)
    for at, model, response in zip(offsets, models, responses, strict=True):
        entry = await deployment.entry(model)
        if at < head:
            assert (response.status, response.ended) == (502, "complete"), at
            unbilled(entry, "upstream_failed")
            continue
        assert body.startswith(response.body), at
        # A body that only the close ends was all there if its answer was: nobody can know of more.
        if sse.done(response.body) or (framing == "close" and sse.finish_reason(response.body) and how == "fin"):
            assert (entry["outcome"], response.ended) == ("served", "complete"), at
            continue
        assert response.ended in ("cut", "reset"), at
        assert entry["outcome"] == "upstream_failed", at
        if not sse.text(response.body):
            unbilled(entry, "upstream_failed")
        elif not sse.usage(response.body):
            delivered_only(entry, "upstream_failed")
        else:
            assert entry["usage_source"] == "reported"
            assert nusd(entry) == charge(entry)
    assert len(offsets) >= (40 if AT_RANDOM else 13)


def framed(framing: str) -> Script:
    return Script(steps=sends(*EVENTS), framing=framing, http="1.0" if framing == "close" else "1.1")  # type: ignore[arg-type]


@pytest.mark.parametrize("wire", [b"zz\r\n", b"5\r\nhelloworld\r\n", b"fffffffff\r\n", b"-5\r\n", b"\r\n\r\n"])
@pytest.mark.parametrize("apart", [True, False], ids=["apart", "together"])
async def test_broken_framing_is_a_broken_stream(deployment: Deployment, wire: bytes, apart: bool) -> None:
    """`together`: in one read with the good events before it."""
    good = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in CONTENT)
    steps = (*sends(*CONTENT), Wait(30), Raw(wire)) if apart else (Raw(good + wire),)
    response, entry = await faulty(deployment, Script(steps=(*steps, Stall())))
    assert response.ended in ("cut", "reset")
    assert response.body.startswith(b"".join(CONTENT))
    delivered_only(entry, "upstream_failed")


# -- a stream that says odd things -------------------------------------------------------------------------------------


async def test_an_error_event_after_content_is_passed_on_and_is_no_output(deployment: Deployment) -> None:
    failed = event_of(error_object("overloaded " * 200, "server_error"))
    response, entry = await faulty(deployment, Script(steps=sends(*CONTENT, failed, DONE)))
    assert (response.body, response.ended) == (b"".join(CONTENT) + failed + DONE, "complete")
    delivered_only(entry, "upstream_failed")
    assert entry["completion_tokens"] < 30
    assert entry["details"]["failed"] == "error_event"


async def test_an_error_event_alone_costs_nothing(deployment: Deployment) -> None:
    failed = event_of(error_object("no", "server_error"))
    response, entry = await faulty(deployment, Script(steps=sends(failed)))
    assert (response.body, response.ended) == (failed, "complete")
    unbilled(entry, "upstream_failed")


@dataclass(frozen=True)
class Oddity:
    """A stream that is served all the same: its events, what reaches the client, and what is read of it."""

    events: tuple[bytes, ...]
    source: str = "estimated"
    usage: tuple[int, int] | None = None
    flag: str | None = None


ODDITIES = {
    "no usage": Oddity((*FINISHED, END)),
    "no [DONE]": Oddity((*FINISHED, USAGE), "reported", (21, 6)),
    "no [DONE], no usage": Oddity((*FINISHED,)),
    "usage twice": Oddity((*FINISHED, usage_event(), usage_event(), END), "reported", (7, 5)),
    "usage grows": Oddity(
        (*FINISHED, usage_event(completion_tokens=2, total_tokens=9), usage_event(), END), "reported", (7, 5)
    ),
    "usage falls": Oddity(
        (*FINISHED, usage_event(), usage_event(completion_tokens=2, total_tokens=9), END),
        "reported",
        (7, 5),
        "usage_decreased",
    ),
    "float counts": Oddity((*FINISHED, usage_event(prompt_tokens=7.0), END), "reported", (7, 5)),
    "negative": Oddity((*FINISHED, usage_event(completion_tokens=-5), END), flag="usage_invalid"),
    "huge": Oddity((*FINISHED, usage_event(completion_tokens=10**12), END), flag="usage_invalid"),
    "bool": Oddity((*FINISHED, usage_event(completion_tokens=True), END), flag="usage_invalid"),
    "string": Oddity((*FINISHED, usage_event(completion_tokens="5"), END), flag="usage_invalid"),
    "NaN": Oddity((*FINISHED, usage_event(completion_tokens=float("nan")), END), flag="usage_invalid"),
    "forged in text": Oddity(
        (event_of({"choices": [{"index": 0, "delta": {"content": '\u2028data: [DONE]\n\ndata: {"usage":1}'}}]}), END)
    ),
    "garbage lines": Oddity((b"what is this?\n\n", b"data: {broken\n\n", b": \xff\xfe\n\n", *FINISHED, END)),
}


@pytest.mark.parametrize("name", ODDITIES)
async def test_odd_streams_are_passed_on_and_read_as_far_as_they_can_be(deployment: Deployment, name: str) -> None:
    oddity = ODDITIES[name]
    response, entry = await faulty(deployment, Script(steps=sends(*oddity.events)))
    passed = [event for event in oddity.events if b'"choices":[],' not in event or b"NaN" in event]  # NaN is no JSON
    assert (response.body, response.ended) == (b"".join(passed), "complete")
    assert (entry["outcome"], entry["usage_source"]) == ("served", oddity.source)
    assert nusd(entry) == charge(entry) > 0
    if oddity.usage is not None:
        assert (entry["prompt_tokens"], entry["completion_tokens"]) == oddity.usage
    if oddity.flag is not None:
        assert oddity.flag in entry["details"]["flags"]


@pytest.mark.parametrize("end", [b"\r\n", b"\r"])
async def test_other_line_ends(deployment: Deployment, end: bytes) -> None:
    events = [event.replace(b"\n", end) for event in EVENTS]
    for usage in (True, None):
        script = plans.sse_script(events, how="random", seed=4)
        response, entry = await deployment.exchange("cancel", script, usage=usage)
        expected = b"".join(events) if usage else b"".join((*events[:-2], events[-1]))
        assert (response.body, response.ended) == (expected, "complete")
        assert (entry["outcome"], entry["prompt_tokens"], entry["completion_tokens"]) == ("served", 21, 6)


async def test_a_line_of_four_megabytes_goes_through(deployment: Deployment) -> None:
    size = 4 << 20
    response, entry = await faulty(deployment, plans.long_line(size, after=EVENTS))
    assert response.ended == "complete"
    assert len(response.body) == len(b'data: {"padding":"' + b'"}\n\n') + size + len(b"".join((*FINISHED, END)))
    assert response.body.endswith(b"".join((*FINISHED, END)))
    assert (entry["outcome"], entry["prompt_tokens"], entry["completion_tokens"]) == ("served", 21, 6)
    assert "event_too_long" in entry["details"]["flags"]


async def test_a_compressed_stream_is_passed_on_as_it_is_at_once(deployment: Deployment) -> None:
    """Nobody asked for it: it is decompressed for the meter only, and not held back, although no line of it ends."""
    plan = Script(steps=(*sends(*EVENTS), Stall()), gzip=True)
    model = deployment.plan("cancel", plan)
    packed = wire_of(Script(steps=sends(*EVENTS), gzip=True, framing="close")).partition(b"\r\n\r\n")[2]
    async with await deployment.begin(model) as client:
        response = await client.read_head()
        assert response.header("content-encoding") == "gzip"
        await client.read_body(response, until=packed[:-10])  # all but the check sum at its end
    response, entry = await deployment.exchange("cancel", plans.gzipped(EVENTS))
    assert (response.body, response.ended) == (packed, "complete")
    assert (entry["bytes"], entry["outcome"], entry["usage_source"]) == (len(packed), "served", "reported")
    assert (entry["prompt_tokens"], entry["completion_tokens"]) == (21, 6)


@pytest.mark.parametrize("coding", ["br", "gzip"])
async def test_what_cannot_be_decompressed_is_counted_by_its_size(deployment: Deployment, coding: str) -> None:
    headers = (("Content-Type", "text/event-stream"), ("Content-Encoding", coding))
    response, entry = await faulty(deployment, Script(steps=(Send(b"no such thing" * 9),), headers=headers))
    assert (response.body, entry["outcome"], entry["usage_source"]) == (b"no such thing" * 9, "served", "estimated")
    assert 0 < entry["completion_tokens"] <= 9 * 13
    assert entry["details"]["flags"] == ["encoded"]
    assert float(entry["charge_usd"]) > 0


async def test_a_compressed_json_answer_is_read(deployment: Deployment) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    body = gzip.compress(json.dumps({"object": "chat.completion", "choices": [], "usage": usage}).encode())
    headers = (("Content-Type", "application/json"), ("Content-Encoding", "gzip"))
    plan = Script(steps=(Send(body),), headers=headers, framing="length")
    response, entry = await deployment.exchange("cancel", plan, stream=False)
    assert (response.body, entry["prompt_tokens"], entry["usage_source"]) == (body, 7, "reported")


@pytest.mark.parametrize("secret", [Tokenweir.PROVIDER_KEY, "nothing secret"])
async def test_a_compressed_error_that_echoes_our_key_is_replaced(deployment: Deployment, secret: str) -> None:
    body = gzip.compress(json.dumps({"error": {"message": f"bad key {secret}"}}).encode())
    headers = (("Content-Type", "application/json"), ("Content-Encoding", "gzip"))
    plan = Script(steps=(Send(body),), status=400, headers=headers, framing="length")
    response, _ = await faulty(deployment, plan)
    assert response.status == (502 if secret == Tokenweir.PROVIDER_KEY else 400)
    assert response.status == 502 or response.body == body


async def test_done_and_then_an_open_connection_is_an_end(deployment: Deployment) -> None:
    plan = Script(steps=(*sends(*EVENTS), Stall()))
    response, entry = await faulty(deployment, plan, "impatient")
    assert (response.body, response.ended) == (sse.without_usage_event(b"".join(EVENTS)), "complete")
    assert (entry["outcome"], entry["usage_source"]) == ("served", "reported")


async def test_a_stream_without_a_content_type_is_still_a_stream(deployment: Deployment) -> None:
    for headers in ((), (("Content-Type", "text/plain"),), (("Content-Type", "application/octet-stream"),)):
        response, entry = await faulty(deployment, Script(steps=sends(*EVENTS), headers=headers))
        assert (response.body, response.ended) == (sse.without_usage_event(b"".join(EVENTS)), "complete")
        assert (entry["outcome"], entry["usage_source"], entry["completion_tokens"]) == ("served", "reported", 6)


@pytest.mark.parametrize("framing", ["chunked", "close", "length"])
async def test_no_race_between_the_head_and_all_the_rest(deployment: Deployment, framing: str) -> None:
    """Head, body and the connection's end in one segment, many times: no byte is lost and nothing hangs. The provider
    says that it closes: whoever does not may do it just as the next request is written."""
    script = framed(framing) if framing != "chunked" else plans.sse_script(EVENTS)
    wire = wire_of(msgspec.structs.replace(script, headers=(*script.headers, ("Connection", "close"))))
    cut = wire_of(Script(steps=(*sends(*CONTENT),), framing=framing, declared_length=9999))  # type: ignore[arg-type]
    cut = cut.removesuffix(b"0\r\n\r\n")
    models = [deployment.plan("cancel", cut_off(part, len(part))) for part in (wire, cut) * 10]
    responses = await asyncio.gather(*(deployment.post(model, usage=True) for model in models))
    assert [response.body for response in responses] == [b"".join(EVENTS), b"".join(CONTENT)] * 10
    assert {response.ended for response in responses[::2]} == {"complete"}
    assert {response.ended for response in responses[1::2]} <= {"cut", "reset"}


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 403, 404, 409, 413, 422, 429, 500, 502, 503, 529])
async def test_a_refusal_is_passed_on_and_costs_nothing(deployment: Deployment, status: int) -> None:
    """403, too: a model that is not enabled, content that is not allowed; nothing that our credentials could help."""
    refusal = plans.error_script(status, "not like this", (("Retry-After", "7"), ("Set-Cookie", "a=b")))
    response, entry = await faulty(deployment, refusal)
    assert (response.status, error_of(response)["message"]) == (status, "not like this")
    assert (response.header("retry-after"), response.header("set-cookie")) == ("7", None)
    unbilled(entry, "refused_upstream" if status < 500 else "upstream_failed")
    assert entry["details"]["upstream_status"] == status


@pytest.mark.parametrize("status", [401, 407])
async def test_what_is_said_about_our_own_key_is_not_passed_on(deployment: Deployment, status: int) -> None:
    text = "Incorrect API key provided: sk-canary****7d1f of org-internal"
    response, entry = await faulty(deployment, plans.error_script(status, text))
    assert (response.status, error_of(response)["code"]) == (502, "upstream_auth")
    assert b"canary" not in response.body
    assert b"org-internal" not in response.body
    unbilled(entry, "refused_upstream")


@pytest.mark.parametrize("status", [400, 403, 404, 429, 500])
@pytest.mark.parametrize("message", [f"bad key {Tokenweir.PROVIDER_KEY}!", "x" * 400_000], ids=["our key", "long"])
async def test_an_error_that_echoes_our_key_or_is_very_long_is_replaced(
    deployment: Deployment, status: int, message: str
) -> None:
    response, entry = await faulty(deployment, plans.error_script(status, message))
    assert (response.status, error_of(response)["code"]) == (502, "upstream_failed")
    unbilled(entry, "refused_upstream" if status < 500 else "upstream_failed")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(deployment: Deployment, status: int) -> None:
    elsewhere = deployment.plan("cancel", sends(*EVENTS))
    location = f"{deployment.provider.base_url}/chat/completions?elsewhere"
    response, entry = await faulty(deployment, plans.redirect(location, status))
    assert (response.status, error_of(response)["code"]) == (502, "upstream_failed")
    assert response.header("location") is None
    unbilled(entry, "upstream_failed")
    assert deployment.seen(elsewhere) == []
    assert not [one for one in deployment.provider.log() if "elsewhere" in one["path"]]


@pytest.mark.parametrize("status", [400, 422])
async def test_stream_options_that_are_refused_are_taken_back_and_remembered(
    deployment: Deployment, status: Literal[400, 422]
) -> None:
    model = deployment.plan("cancel", plans.refuses_stream_options((*FINISHED, END), status))
    for _ in range(2):
        response = await deployment.post(model)
        assert (response.status, response.body) == (200, b"".join((*FINISHED, END)))
    asked = ["stream_options" in one["body"] for one in deployment.seen(model)]
    assert asked == [True, False, False]
    entries = await deployment.entries(model, 2)
    assert [(entry["outcome"], entry["usage_source"]) for entry in entries] == [("served", "estimated")] * 2


async def test_an_error_after_stream_options_are_taken_back_has_its_own_body(deployment: Deployment) -> None:
    plan = msgspec.structs.replace(plans.error_script(429, "slow down"), refuse_stream_options=400)
    response = await deployment.post(deployment.plan("cancel", plan))
    assert (response.status, error_of(response)["message"]) == (429, "slow down")


async def test_stream_options_that_the_client_asked_for_are_its_own(deployment: Deployment) -> None:
    model = deployment.plan("cancel", plans.refuses_stream_options(EVENTS))
    response = await deployment.post(model, usage=True)
    assert (response.status, error_of(response)["param"]) == (400, "stream_options")
    assert len(deployment.seen(model)) == 1
    forced = deployment.plan("always", plans.refuses_stream_options(EVENTS))
    assert (await deployment.post(forced)).status == 400
    assert len(deployment.seen(forced)) == 1


async def test_another_400_is_not_taken_for_a_refusal_of_stream_options(deployment: Deployment) -> None:
    model = deployment.plan("cancel", plans.error_script(400, "max_tokens is too large"))
    response = await deployment.post(model)
    assert (response.status, error_of(response)["message"]) == (400, "max_tokens is too large")
    assert len(deployment.seen(model)) == 1


async def test_a_stale_connection_does_not_fail_the_next_request(deployment: Deployment) -> None:
    """The provider closes its side after an answer that promised to stay: the next request finds another way."""
    closing = Script(steps=(*sends(END), Raw(b"0\r\n\r\n"), Fin()), framing="chunked")
    for _ in range(5):
        model = deployment.plan("cancel", closing)
        assert (await deployment.post(model)).status == 200
        await deployment.seen_until(model, "duration_s")
        await asyncio.sleep(0.02)
        response = await deployment.post(deployment.plan("cancel", sends(END)))
        assert (response.status, response.body) == (200, END)
