"""Isolation: headers, credentials and connections of clients and of providers do not cross the proxy."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from proxy.demo.script import Script, Send
from proxy.demo.shapes import json_bytes
from tests.security.guarded import Guarded
from tests.security.payloads import request
from tests.security.raw_provider import completion, raw_provider, streamed, whole
from tests.support.net import ask, connect, post_chat

HEARD = frozenset(
    {
        "content-type",
        "content-length",
        "transfer-encoding",
        "connection",
        "date",
        "server",
        "cache-control",
        "x-accel-buffering",
        "x-tokenweir-exchange",
        "x-request-id",
        "openai-processing-ms",
        "retry-after",
    }
)
CONTENT = b'data: {"id":"c1","choices":[{"index":0,"delta":{"content":"yes"},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"

# What a provider may say about itself, us and our other clients.
TELLING = (
    ("Set-Cookie", "session=provider-cookie; Path=/"),
    ("openai-organization", "org-secret"),
    ("openai-project", "proj-secret"),
    ("x-ratelimit-remaining-requests", "17"),
    ("Authorization", "Bearer echoed"),
    ("Server", "provider-server"),
    ("Via", "1.1 inner.provider.test"),
    ("Location", "http://inner.provider.test/"),
    ("Alt-Svc", 'h3=":443"'),
    ("Strict-Transport-Security", "max-age=1"),
    ("Access-Control-Allow-Origin", "*"),
    ("Refresh", "0; url=http://evil.test"),
    ("Connection", "keep-alive, X-Request-Id"),
    ("Keep-Alive", "timeout=5"),
    ("X-Tokenweir-Exchange", "forged"),
    ("X-Request-Id", "req-1"),
    ("openai-processing-ms", "12"),
)


def _json_answer(status: int, headers: tuple[tuple[str, str], ...]) -> Script:
    steps = (Send(completion("yes")),)
    return Script(steps, status, (("Content-Type", "application/json"), *headers), framing="length")


def _stream(headers: tuple[tuple[str, str], ...]) -> Script:
    return Script((Send(CONTENT), Send(DONE)), headers=(("Content-Type", "text/event-stream"), *headers))


@pytest.mark.parametrize(
    ("script", "streams"),
    [(_json_answer(200, TELLING), False), (_stream(TELLING), True), (_json_answer(429, TELLING), False)],
    ids=["json", "stream", "refusal"],
)
async def test_a_provider_tells_the_client_nothing_of_itself(script: Script, streams: bool, guarded: Guarded) -> None:
    model = guarded.provider.script("telling", script)
    response = await guarded.ask(model, stream=streams)
    assert response.status == script.status
    assert {name.lower() for name, _ in response.headers} <= HEARD
    assert response.header("server") == "tokenweir"
    assert response.header("x-request-id") == "req-1"
    assert len([name for name, _ in response.headers if name.lower() == "x-tokenweir-exchange"]) == 1
    assert "forged" not in str(response.header("x-tokenweir-exchange"))
    for secret in (b"provider-cookie", b"org-secret", b"proj-secret", b"inner.provider", b"provider-server"):
        assert secret not in response.head


async def test_a_cookie_is_never_sent_back(guarded: Guarded) -> None:
    model = guarded.provider.script("cookie", _json_answer(200, TELLING))
    for _ in range(2):
        await guarded.ask(model, stream=False)
    assert all("cookie" not in _names(one) for one in guarded.provider.log())


async def test_a_client_tells_the_provider_nothing_of_itself(guarded: Guarded) -> None:
    sent = {
        "Cookie": "session=client-cookie",
        "X-Forwarded-For": "10.1.2.3",
        "Forwarded": "for=10.1.2.3",
        "X-Real-IP": "10.1.2.3",
        "Referer": "http://inner.client.test/",
        "Origin": "http://inner.client.test",
        "User-Agent": "client-agent",
        "OpenAI-Organization": "org-of-client",
        "X-Api-Key": guarded.key,
        "Api-Key": guarded.key,
        "Proxy-Authorization": f"Bearer {guarded.key}",
        "X-Stainless-OS": "Linux",
        "Accept-Encoding": "gzip, br, zstd",
        "Idempotency-Key": "mine",
        "TE": "trailers",
        "Connection": "close, X-Real-IP",
        "OpenAI-Beta": "assistants=v2",
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    }
    assert (await guarded.ask("tera", headers=sent)).status == 200
    (seen,) = guarded.provider.log()
    got = {name.lower(): value for name, value in seen["headers"]}
    assert set(got) <= {"host", "content-type", "accept", "accept-encoding", "user-agent", "authorization",
                        "openai-beta", "traceparent", "content-length"}  # fmt: skip
    assert got["authorization"] == f"Bearer {guarded.tokenweir.PROVIDER_KEY}"
    assert got["accept-encoding"] == "identity"
    assert got["traceparent"] == sent["traceparent"]
    assert guarded.key not in json.dumps(seen)


async def test_no_field_of_the_body_steers_where_it_goes(guarded: Guarded) -> None:
    fields = (
        "api_base",
        "base_url",
        "api_key",
        "organization",
        "api_version",
        "custom_llm_provider",
        "endpoint",
        "url",
    )
    async with raw_provider(guarded.raw_port, lambda _: [whole(completion("stolen"))]) as elsewhere:
        target = f"http://127.0.0.1:{guarded.raw_port}/v1"
        more = dict.fromkeys(fields, target)
        response = await guarded.ask("tera", stream=False, **more)
        headers = {"X-Api-Base": target, "X-Forwarded-Host": "evil.test", "X-Original-URL": "/admin"}
        await guarded.ask("tera", stream=False, headers=headers)
    assert response.status == 200
    assert elsewhere.connections == 0
    assert len(guarded.provider.log()) == 2


async def test_the_request_that_goes_up_is_made_here(guarded: Guarded) -> None:
    async with raw_provider(guarded.raw_port, lambda _: [whole(completion("yes"))]) as raw:
        body = json_bytes(ask("raw", stream=False))
        line = b"POST /v1/chat/completions?api_base=http://evil.test&x=../../y HTTP/1.1"
        wire = request(body, guarded.key, line=line, host=b"Host: evil.test\r\n")
        assert (await guarded.send(wire)).status == 200
    head, _, sent = raw.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /prefix/v1/chat/completions HTTP/1.1\r\n")
    assert f"host: 127.0.0.1:{guarded.raw_port}".encode() in head.lower()
    assert b"evil" not in head
    assert json.loads(sent) == json.loads(body)


@pytest.mark.parametrize("pause", [0.0, 0.2], ids=["at once", "while it is idle"])
@pytest.mark.parametrize("streams", [False, True])
async def test_what_comes_after_an_answer_is_not_the_next_one(streams: bool, pause: float, guarded: Guarded) -> None:
    good = streamed(CONTENT, DONE) if streams else whole(completion("yes"))
    poison = streamed(CONTENT.replace(b"yes", b"poison"), DONE) if streams else whole(completion("poison"))
    parts: list[bytes | float] = [good, pause, poison] if pause else [good + poison]

    def answer(number: int) -> list[bytes | float]:
        return parts if number == 0 else [good]

    async with raw_provider(guarded.raw_port, answer) as raw:
        first = await guarded.ask("raw", stream=streams)
        if pause:
            await asyncio.sleep(pause * 2)
        second = await guarded.ask("raw", stream=streams)
    assert b"poison" not in first.body + second.body
    assert first.body == second.body
    assert second.status == 200
    assert len(raw.requests) == 2


async def test_a_body_cut_short_is_not_completed_by_the_next(guarded: Guarded) -> None:
    short = whole(completion("yes"))[:-20]
    async with raw_provider(guarded.raw_port, lambda n: [short, 0.05] if n == 0 else [whole(completion("two"))]) as raw:
        async with await connect(guarded.url) as client:
            await client.send(request(json_bytes(ask("raw", stream=False)), guarded.key))
            while not raw.requests:
                await asyncio.sleep(0.01)
            client.reset()
        second = await guarded.ask("raw", stream=False)
    assert (second.status, json.loads(second.body)["choices"][0]["message"]["content"]) == (200, "two")
    assert raw.connections == 2


async def test_an_aborted_stream_is_not_read_on_by_the_next(guarded: Guarded) -> None:
    head = streamed(CONTENT)[: -len(b"0\r\n\r\n")]
    rest: list[bytes | float] = [head, 0.3, b"%x\r\n%b\r\n0\r\n\r\n" % (len(DONE), DONE)]
    async with raw_provider(guarded.raw_port, lambda n: rest if n == 0 else [streamed(CONTENT, DONE)]) as raw:
        async with await connect(guarded.url) as client:
            await client.send(request(json_bytes(ask("raw")), guarded.key))
            await client.read_body(await client.read_head(), until=b"yes")
            client.reset()
        second = await guarded.ask("raw")
        await asyncio.sleep(0.4)
    assert (second.status, second.ended, second.body) == (200, "complete", CONTENT + DONE)
    assert raw.connections == 2


async def test_who_pays_is_the_key_and_nothing_else(guarded: Guarded) -> None:
    forged = {
        "X-Request-Id": "same",
        "X-Tokenweir-Exchange": "01900000-0000-7000-8000-000000000000",
        "X-Litellm-Key-Alias": "somebody",
        "X-Litellm-Tags": "team:other",
        "X-Portkey-Metadata": '{"_user":"somebody"}',
        "OpenAI-Organization": "org-other",
    }
    said = {"user": "somebody", "metadata": {"key_alias": "somebody", "user_api_key": "x"}, "safety_identifier": "x"}
    model = guarded.provider.script("forged", _stream(()))
    answers = [await guarded.ask(model, headers=forged | {"Idempotency-Key": f"same {n}"}, **said) for n in range(2)]
    ids = {answer.header("x-tokenweir-exchange") for answer in answers}
    assert len(ids) == 2
    assert forged["X-Tokenweir-Exchange"] not in ids
    mine = guarded.tokenweir.until(lambda entries: len([e for e in entries if e["model"] == model]) == 2)
    entries = [entry for entry in mine if entry["model"] == model]
    assert {entry["exchange_id"] for entry in entries} == ids
    assert {entry["key_alias"] for entry in entries} == {"test"}
    assert "somebody" not in json.dumps(entries)


@pytest.mark.parametrize(
    "presented",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic dXNlcjpwYXNz",
        "Bearer ' OR '1'='1",
        "Bearer tw-'; DROP TABLE api_keys; --",
        "Bearer %",
        "Bearer tw-%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%",
        "Bearer tw-" + "A" * 43,
        "Bearer tw-" + "A" * 8000,
        "Bearer null",
        "Bearer undefined",
        f"Bearer {'tw-' + 'é' * 43}",
    ],
)
async def test_what_is_no_key_opens_nothing(presented: str, guarded: Guarded) -> None:
    body = json.dumps(ask("tera")).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\nAuthorization: {presented}"
    response = await guarded.send(head.encode() + b"\r\n\r\n" + body, source="127.0.2.2")
    error = json.loads(response.body)["error"]
    assert (response.status, error["type"], error["code"]) == (401, "authentication_error", "invalid_api_key")
    assert guarded.provider.log() == []


async def test_a_key_is_its_whole_length(guarded: Guarded) -> None:
    key = guarded.key
    other = "A" if key[-1] != "A" else "B"
    near = (
        key[:-1] + other,
        key[:20] + "A" * 26,
        key[:-1],
        key + "A",
        key.upper(),
        key + " x",
        key.replace("tw-", "TW-"),
    )
    for presented in near:
        response = await post_chat(guarded.url, ask("tera"), key=presented, source="127.0.2.3")
        assert response.status == 401, presented
    assert (await guarded.ask("tera")).status == 200
    assert len(guarded.provider.log()) == 1


def _names(seen: dict[str, Any]) -> set[str]:
    return {name.lower() for name, _ in seen["headers"]}
