"""Smuggling: a request that two parsers could read differently is refused, in OpenAI's error shape, and not sent on."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from contextlib import suppress

import pytest
from aiohttp import http_parser

from proxy.http.server import Routes, Server
from tests.security.guarded import Guarded
from tests.security.payloads import CHUNKED, LINE, chunked, refused, request
from tests.support.examples import repeats
from tests.support.net import RawClient, ask, connect

BODY = json.dumps(ask("tera")).encode()
NAMES = tuple(refused(BODY, "key"))
RANDOM_CASES = repeats(240, gate=80)


async def test_refused(guarded: Guarded) -> None:
    for name, wire in refused(BODY, guarded.key).items():
        response = await guarded.send(wire)
        assert 400 <= response.status < 600, name
        assert response.status not in {500, 502}, (name, response.body)
        error = json.loads(response.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}, name
        assert guarded.key.encode() not in response.body, name
        assert b"weir" not in response.body, f"{name}: the prompt came back"
        assert guarded.provider.log() == [], name


def test_the_family_is_whole() -> None:
    assert len(NAMES) >= 90
    kinds = {"chunk", "coding", "field", "host", "length", "line", "long", "target", "twice", "upgrade"}
    assert {name.split()[0] for name in NAMES} >= kinds


@pytest.mark.parametrize(
    "make",
    [
        lambda key: request(BODY, key),
        lambda key: request(chunked(BODY), key, CHUNKED, length=False),
        lambda key: request(chunked(BODY), key, b"transfer-encoding:\tChunked", length=False),
        lambda key: request(BODY, key, line=LINE.replace(b"1.1", b"1.0")),
        lambda key: request(BODY, key, host=b"Host: [::1]:8080\r\n"),
        lambda key: request(BODY, key, host=b"Host: my_proxy.internal:8080\r\n"),
        lambda key: request(BODY, key, line=LINE.replace(b"ons ", b"ons?api-version=1 ")),
        lambda key: request(BODY, key, b"X-Name: \xff\xfe"),
        lambda key: request(BODY, key, b"Content-Encoding: identity"),
        lambda key: b"\r\n" + request(BODY, key),
    ],
)
async def test_its_well_formed_neighbours_are_served(make: Callable[[str], bytes], guarded: Guarded) -> None:
    response = await guarded.send(make(guarded.key))
    assert response.status == 200, response.body
    assert len(guarded.provider.log()) == 1


@pytest.mark.parametrize(
    "name",
    ["length and coding", "coding gzip first", "host with a path", "field LF alone", "upgrade"],
)
async def test_nothing_behind_a_refused_head_is_read(name: str, guarded: Guarded) -> None:
    hidden = request(b"", guarded.key, line=b"GET /v1/models HTTP/1.1", length=False)
    async with await connect(guarded.url) as client:
        await client.send(refused(BODY, guarded.key)[name] + hidden)
        assert (await client.read()).status >= 400
        assert await _rest(client) == b""


async def test_a_body_that_is_a_request_is_a_body(guarded: Guarded) -> None:
    inner = request(BODY, guarded.key)
    async with await connect(guarded.url) as client:
        await client.send(request(inner, guarded.key))
        assert (await client.read()).status == 400
        client.half_close()
        assert await _rest(client) == b""
    assert guarded.provider.log() == []


async def test_trailers_nobody_announced_are_dropped(guarded: Guarded) -> None:
    wire = chunked(BODY).removesuffix(b"\r\n") + b"Authorization: Bearer other\r\nX-Trailer: x\r\n\r\n"
    response = await guarded.send(request(wire, guarded.key, CHUNKED, length=False))
    assert response.status == 200
    (seen,) = guarded.provider.log()
    assert ["Authorization", f"Bearer {guarded.tokenweir.PROVIDER_KEY}"] in seen["headers"]
    assert "x-trailer" not in {name.lower() for name, _ in seen["headers"]}


async def test_an_offer_of_h2c_is_declined_and_nothing_may_follow(guarded: Guarded) -> None:
    offer = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA")
    hidden = request(b"", guarded.key, line=b"GET /v1/models HTTP/1.1", length=False)
    async with await connect(guarded.url) as client:
        await client.send(request(BODY, guarded.key, *offer) + hidden)
        response = await client.read()
        assert (response.status, response.ended) == (200, "complete")
        assert await _rest(client) == b""
    (seen,) = guarded.provider.log()
    assert not {"upgrade", "http2-settings"} & {name.lower() for name, _ in seen["headers"]}


async def test_what_connection_names_is_not_what_we_forget(guarded: Guarded) -> None:
    assert (await guarded.send(request(BODY, guarded.key, b"Connection: authorization, keep-alive"))).status == 200
    (seen,) = guarded.provider.log()
    assert ["Authorization", f"Bearer {guarded.tokenweir.PROVIDER_KEY}"] in seen["headers"]


@pytest.mark.hypothesis
async def test_random_damage_never_makes_two_requests_of_one_nor_another_body(guarded: Guarded) -> None:
    """One byte of the head or the framing inserted, replaced or lost: served as meant, or not at all."""
    cases = [_damaged(seed, guarded.key) for seed in range(RANDOM_CASES)]
    for start in range(0, RANDOM_CASES, STEP):
        await asyncio.gather(*(_send_and_leave(guarded.url, wire) for _, wire in cases[start : start + STEP]))
    log = guarded.provider.log()
    models = [one["body"]["model"] for one in log]
    assert len(set(models)) == len(models)
    expected = {name: ask(name, stream=False) for name, _ in cases}
    assert all(one["body"] == expected[one["body"]["model"]] for one in log)
    assert 0 < len(log) < RANDOM_CASES, "the damage does nothing, or nothing survives it"


# Fewer than the deployment's streams at once, so that none is refused for being too many.
STEP = 5


def _damaged(seed: int, key: str) -> tuple[str, bytes]:
    chance = random.Random(seed)
    name = f"damaged-{seed}"
    body = json.dumps(ask(name, stream=False)).encode()
    in_chunks = seed % 2 == 1
    wire = request(chunked(body), key, CHUNKED, length=False) if in_chunks else request(body, key)
    inside = wire.index(body), wire.index(body) + len(body)
    at = chance.choice([n for n in range(len(wire)) if not inside[0] <= n < inside[1]])
    byte = chance.choice([b"\r", b"\n", b"\0", b"\t", b" ", b":", b";", b",", b"0", b"1", b"f", b"x", b"\x0b", b"\xff"])
    match chance.choice(["insert", "replace", "lose"]):
        case "insert":
            return name, wire[:at] + byte + wire[at:]
        case "replace":
            return name, wire[:at] + byte + wire[at + 1 :]
        case _:
            return name, wire[:at] + wire[at + 1 :]


async def _send_and_leave(url: str, wire: bytes) -> None:
    """Whoever is waited for (a body that never comes) leaves soon; whoever is answered has heard it."""
    async with await connect(url) as client:
        with suppress(ConnectionError, EOFError, TimeoutError):
            await client.send(wire)
            await client.read(timeout_s=0.5)


async def _rest(client: RawClient) -> bytes:
    """What still comes until the other side closes."""
    try:
        return await client.read_to_end()
    except ConnectionError:
        return b""


async def test_without_the_c_parser_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    assert http_parser.HttpRequestParser is not http_parser.HttpRequestParserPy
    monkeypatch.setattr("proxy.http.server.HttpRequestParser", http_parser.HttpRequestParserPy)
    with pytest.raises(OSError, match="C parser"):
        await Server(Routes(), refused=lambda _status, _code: None).start("127.0.0.1", 0)
