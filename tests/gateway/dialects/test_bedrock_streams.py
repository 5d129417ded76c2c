"""What is promised for a stream holds for AWS's binary one: its bytes, its errors, and its cost, however it ends."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.demo.script import Cut, Script, Send, Stall
from tests.gateway.deployment import SOON_S, Deployment, charge, nusd
from tests.gateway.dialects.languages import ask
from tests.metering.dialects import bedrock
from tests.metering.dialects.bedrock import ASKED, STREAM, at, chunk, converse
from tests.support.net import chat_request, connect

EVENTS = converse(*[f"The river is {cm} cm high. " for cm in range(40)])
BODY = b"".join(EVENTS)


def script(*steps: Any, **more: Any) -> Script:
    return Script(steps=steps, headers=STREAM, **more)


def told(body: bytes) -> list[tuple[str, str]]:
    """Type and payload of each message, as AWS's own decoder reads them: it checks every checksum."""
    from botocore.eventstream import EventStreamBuffer

    buffer = EventStreamBuffer()
    buffer.add_data(body)
    return [(one.headers.get(":event-type") or one.headers[":exception-type"], one.payload.decode()) for one in buffer]


@pytest.mark.parametrize(
    "wire", [Cut(whole=True), Cut(size=7), Cut(seed=1, size=300), Cut()], ids=["whole", "small", "random", "each"]
)
async def test_its_bytes_are_those_of_the_provider(deployment: Deployment, wire: Cut) -> None:
    model = deployment.plan("many", script(*map(Send, EVENTS), wire=wire))
    response = await ask(deployment, at(model), ASKED)
    assert (response.status, response.body, response.ended) == (200, BODY, "complete")
    assert response.header("content-type") == "application/vnd.amazon.eventstream"
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"]) == ("served", "reported")
    assert (entry["events"], entry["bytes"]) == (len(EVENTS), len(BODY))
    assert (entry["prompt_tokens"], entry["completion_tokens"], nusd(entry)) == (11, 17, charge(entry))


@pytest.mark.parametrize(("damaged", "source"), [(20, "reported"), (-1, "estimated")])
async def test_a_wrong_checksum_lowers_the_reading_and_never_the_stream(
    deployment: Deployment, damaged: int, source: str
) -> None:
    events = list(EVENTS)
    events[damaged] = events[damaged][:-1] + bytes([events[damaged][-1] ^ 1])
    model = deployment.plan("many", script(*map(Send, events)))
    response = await ask(deployment, at(model), ASKED)
    assert (response.body, response.ended) == (b"".join(events), "complete")
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"]) == ("served", source)
    assert entry["details"]["flags"] == ["damaged_event"]
    assert entry["completion_tokens"] == 17 if source == "reported" else entry["completion_tokens"] > 100


async def test_a_stream_that_is_none_is_billed_by_its_size(deployment: Deployment) -> None:
    body = b"this is no event stream at all. " * 1000
    model = deployment.plan("many", script(Send(body)))
    assert (await ask(deployment, at(model), ASKED)).body == body
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"]) == ("upstream_failed", "estimated")
    assert entry["completion_tokens"] > 1000


async def test_a_stall_is_told_as_an_exception_and_nothing_keeps_it_alive(deployment: Deployment) -> None:
    model = deployment.plan("many-briefly", script(*map(Send, EVENTS[:5]), Stall()))
    response = await ask(deployment, at(model), ASKED)
    assert response.body.startswith(b"".join(EVENTS[:5]))
    *begun, last = told(response.body)
    assert (len(begun), last) == (
        5,
        ("modelStreamErrorException", '{"message":"The provider did not answer in time."}'),
    )
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["events"]) == ("upstream_stalled", 6)


async def test_within_a_message_nothing_is_told(deployment: Deployment) -> None:
    """The client would read it as a part of the message."""
    model = deployment.plan("many-briefly", script(Send(EVENTS[0] + EVENTS[1][:-9]), Stall()))
    response = await ask(deployment, at(model), ASKED)
    assert response.body == EVENTS[0] + EVENTS[1][:-9]
    assert response.ended != "complete"
    assert (await deployment.entry(model))["outcome"] == "upstream_stalled"


async def test_a_client_that_leaves_after_the_last_event_was_served(deployment: Deployment) -> None:
    model = deployment.plan("many", script(*map(Send, EVENTS), Stall()))
    async with await connect(deployment.url) as client:
        await client.send(chat_request(ASKED, path=at(model), key=deployment.key))
        await client.read_body(await client.read_head(SOON_S), size=len(BODY), timeout_s=SOON_S)
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"]) == ("served", "reported")


async def test_a_client_that_leaves_in_the_middle_of_a_drained_stream_pays_what_is_reported(
    deployment: Deployment,
) -> None:
    model = deployment.plan("many", script(*map(Send, EVENTS[:9]), Stall()))
    async with await connect(deployment.url) as client:
        await client.send(chat_request(ASKED, path=at(model), key=deployment.key))
        begun = b"".join(EVENTS[:9])
        await client.read_body(await client.read_head(SOON_S), size=len(begun), timeout_s=SOON_S)
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"]) == ("client_left", "estimated")
    assert 40 < entry["completion_tokens"] < 120, "eight sentences"
    assert nusd(entry) == charge(entry)


async def test_a_budget_cuts_it_between_two_messages(deployment: Deployment) -> None:
    made = deployment.tokenweir.change(
        "keys", "create", "--alias", "spent", "--budget", "0.002", "--on-exhausted", "cut"
    )
    model = deployment.plan("many", script(Send(b"".join(EVENTS[1:41]), times=40), Stall()))
    async with await connect(deployment.url) as client:
        await client.send(chat_request(ASKED, path=at(model), key=made["key"]))
        response = await client.read(SOON_S)
    *_, last = told(response.body)
    assert last[0] == "throttlingException"
    assert "budget" in last[1]
    assert response.ended != "complete"
    entry = await deployment.entry(model)
    assert (entry["outcome"], entry["usage_source"]) == ("budget_cut", "estimated")


async def test_refusals_have_aws_s_shape(deployment: Deployment) -> None:
    for path, document, status, kind in (
        (at("many/weir"), {}, 400, "ValidationException"),
        (at("nobody"), ASKED, 404, "ResourceNotFoundException"),
        ("/model/many%2Fweir/nothing", ASKED, 404, "ResourceNotFoundException"),
        (at("cancel/weir"), ASKED, 400, "ValidationException"),
    ):
        response = await ask(deployment, path, document)
        assert (response.status, response.header("x-amzn-errortype")) == (status, kind)
        assert response.body.startswith(b'{"message":"')


async def test_a_signed_request_is_told_what_to_send(deployment: Deployment) -> None:
    signed = "AWS4-HMAC-SHA256 Credential=AKID/20260101/us-east-1/bedrock/aws4_request, SignedHeaders=host, Signature=0"
    async with await connect(deployment.url) as client:
        await client.send(chat_request(ASKED, path=at("many/weir"), key=None, headers={"Authorization": signed}))
        response = await client.read(SOON_S)
    assert (response.status, response.header("x-amzn-errortype")) == (401, "UnrecognizedClientException")
    assert b"AWS_BEARER_TOKEN_BEDROCK" in response.body
    ours = await ask(deployment, at("nobody"), ASKED, {"Authorization": signed, "x-api-key": deployment.key})
    assert ours.status == 404, "the key counts, wherever it is"


async def test_the_models_own_events_reach_the_client_as_they_were_wrapped(deployment: Deployment) -> None:
    events = [chunk(one) for one in bedrock.anthropic()]
    model = deployment.plan("many", script(*map(Send, events), wire=Cut(seed=3, size=200)))
    document = {
        "anthropic_version": "bedrock-2023-05-31",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "x"}],
    }
    response = await ask(deployment, at(model, "invoke-with-response-stream"), document)
    assert (response.body, response.ended) == (b"".join(events), "complete")
    entry = await deployment.entry(model)
    assert (entry["usage_source"], entry["prompt_tokens"], entry["completion_tokens"]) == ("reported", 11, 17)
    assert deployment.seen(model)[0]["body"] == document
