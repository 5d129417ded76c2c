"""A client's own provider credential, over real sockets: which credential arrives, and that it stays nowhere."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest

from proxy.gateway.tapes.tapes import Tapes
from proxy.keys.secrets import new_secret
from proxy.settings import CredentialSettings, Secret
from proxy.settings.provider_headers import HeaderSettings
from tests.gateway.inprocess import KEY, Gateway, OfToken, gateway
from tests.support.net import Response, ask, chat_request, connect, listening

pytestmark = pytest.mark.io

OWN = "sk-canary-of-a-client-5512"
OPERATORS = "sk-canary-of-the-operator-7703"
USAGE = {"prompt_tokens": 8, "completion_tokens": 5, "total_tokens": 13}
SERVED = json.dumps({"id": "c", "object": "chat.completion", "choices": [], "usage": USAGE}).encode()
REASON = b'{"error":{"message":"Incorrect API key provided","code":"invalid_api_key"}}'
TOKENWEIR_KEY = new_secret().reveal()


class Provider:
    """Answers with `status`, and keeps the heads of its requests."""

    def __init__(self) -> None:
        self.heads: list[dict[str, str]] = []
        self.status, self.body, self.type = 200, SERVED, "application/json"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
                head = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
                assert len(head) == len(lines), "each header once"
                await reader.readexactly(int(head.get("content-length", "0")))
                self.heads.append(head)
                fields = f"Content-Type: {self.type}\r\nContent-Length: {len(self.body)}\r\n\r\n"
                writer.write(f"HTTP/1.1 {self.status} X\r\n{fields}".encode() + self.body)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


class Stand:
    """The gateway and its provider."""

    def __init__(self, provider: Provider, gateway: Gateway, tapes: Tapes) -> None:
        self.provider, self.gateway, self.tapes = provider, gateway, tapes

    async def post(self, headers: dict[str, str], key: str | None = "own", **more: object) -> Response:
        """A chat request, or one of another method and path."""
        return await self.send(chat_request(ask("electron", stream=False) | more, key=key, headers=headers))

    async def send(self, wire: bytes) -> Response:
        async with await connect(self.gateway.url) as client:
            await client.send(wire)
            return await client.read()


@asynccontextmanager
async def standing(folder: Path, **settings: object) -> AsyncIterator[Stand]:
    """Of a provider with the operator's credentials, which takes clients' own."""
    provider = Provider()
    keys = OfToken(own=replace(KEY, key_id="own", byok="nothing"), ours=KEY)
    operators = (CredentialSettings(name="main", api_key=Secret(OPERATORS)),)
    tapes = Tapes(bytes_max=1 << 20, total_bytes_max=1 << 20, kept_s=60.0)
    given = {"byok": True, "credentials": operators, "tapes": tapes, **settings}
    async with listening(provider.serve) as url, gateway(folder, f"{url}/v1", keys=keys, **given) as made:  # type: ignore[arg-type]
        yield Stand(provider, made, tapes)


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    headers = HeaderSettings(up={"OpenAI-Project": Secret("proj_ours"), "X-Gateway": Secret(OPERATORS)})
    async with standing(tmp_path, headers=headers) as made:
        yield made


WAYS = [
    ("own", {"x-tokenweir-provider-key": OWN}, "authorization", f"Bearer {OWN}"),
    ("own", {"x-tokenweir-provider-key": f"Bearer {OWN}"}, "authorization", f"Bearer {OWN}"),
    (OWN, {"x-tokenweir-key": "own"}, "authorization", f"Bearer {OWN}"),
    (OWN, {"x-tokenweir-key": "Bearer own"}, "authorization", f"Bearer {OWN}"),
    (None, {"x-tokenweir-key": "own", "x-api-key": OWN}, "x-api-key", OWN),
    ("own", {"x-tokenweir-key": "own", "x-api-key": OWN}, "x-api-key", OWN),
    ("sk-another", {"x-tokenweir-key": "own", "x-tokenweir-provider-key": OWN}, "authorization", f"Bearer {OWN}"),
]


@pytest.mark.parametrize(("key", "headers", "name", "value"), WAYS)
async def test_the_clients_credential_goes_up_and_nothing_of_the_operator(
    stand: Stand, key: str | None, headers: dict[str, str], name: str, value: str
) -> None:
    response = await stand.post(headers, key)
    [head] = stand.provider.heads
    assert (response.status, head[name]) == (200, value)
    credentials = {"authorization", "x-api-key", "x-goog-api-key", "api-key"}
    assert head.keys() & credentials == {name}
    assert not any(one.startswith("x-tokenweir") or one in ("openai-project", "x-gateway") for one in head)
    assert OPERATORS not in str(head)
    [record] = stand.gateway.outbox.records
    assert record.opened.byok == "nothing"
    assert "credential" not in record.details


REFUSED = [
    ("own", {}, 401, "provider_key_missing"),
    (None, {"x-tokenweir-key": "own"}, 401, "provider_key_missing"),
    ("own", {"x-tokenweir-key": "own"}, 401, "provider_key_missing"),
    ("own", {"x-api-key": OWN}, 401, "provider_key_missing"),
    ("own", {"x-tokenweir-provider-key": "own"}, 400, "invalid_provider_key"),
    ("own", {"x-tokenweir-provider-key": ""}, 400, "invalid_provider_key"),
    ("own", {"x-tokenweir-provider-key": "a b"}, 400, "invalid_provider_key"),
    ("own", {"x-tokenweir-provider-key": TOKENWEIR_KEY}, 400, "invalid_provider_key"),
    ("own", {"x-tokenweir-provider-key": f"Bearer {TOKENWEIR_KEY}"}, 400, "invalid_provider_key"),
    (OWN, {"x-tokenweir-key": "own", "x-api-key": "sk-another"}, 400, "ambiguous_provider_key"),
    (TOKENWEIR_KEY, {"x-tokenweir-key": "own"}, 400, "ambiguous_key"),
    ("ours", {"x-tokenweir-provider-key": OWN}, 403, "byok_not_allowed"),
    (OWN, {"x-tokenweir-key": "ours", "x-tokenweir-provider-key": OWN}, 403, "byok_not_allowed"),
]


@pytest.mark.parametrize(("key", "headers", "status", "code"), REFUSED, ids=range(len(REFUSED)))
async def test_other_requests_are_refused_and_nothing_is_sent(
    stand: Stand, key: str | None, headers: dict[str, str], status: int, code: str
) -> None:
    response = await stand.post(headers, key)
    error = json.loads(response.body)["error"]
    assert (response.status, error["code"]) == (status, code)
    assert OWN not in str(error)
    assert TOKENWEIR_KEY not in str(error)
    assert stand.provider.heads == []
    assert stand.gateway.outbox.opened == 0


async def test_two_such_headers_are_refused(stand: Stand) -> None:
    twice = f"x-tokenweir-provider-key: {OWN}\r\nX-Tokenweir-Provider-Key: sk-another\r\nAuth"
    wire = chat_request(ask("electron"), key="own").replace(b"Auth", twice.encode(), 1)
    assert (await stand.send(wire)).status == 400


async def test_an_ordinary_key_in_its_own_header_uses_the_operators_credential(stand: Stand) -> None:
    assert (await stand.post({"x-tokenweir-key": "ours"}, OWN)).status == 200
    [head] = stand.provider.heads
    assert head["authorization"] == f"Bearer {OPERATORS}"
    assert OWN not in str(head)


@pytest.mark.parametrize("status", [401, 402, 403, 429, 500])
async def test_a_refusal_is_the_clients_and_pauses_nothing(
    stand: Stand, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    stand.provider.status, stand.provider.body = status, REASON
    for _ in range(6):  # more than open a breaker
        response = await stand.post({"x-tokenweir-provider-key": OWN})
        assert (response.status, response.body) == (status, REASON)
    provider = stand.gateway.provider
    assert provider.pool is not None
    assert provider.health.failures == 0
    assert provider.health.away_s(monotonic()) == 0
    assert provider.pool.rests_s(monotonic()) == 0
    assert not provider.pool.all_rejected
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
    stand.provider.status, stand.provider.body = 200, SERVED
    assert (await stand.post({}, "ours")).status == 200


async def test_the_credential_is_in_no_journal_record_log_or_metric(
    stand: Stand, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for status in (200, 401, 500):
        stand.provider.status = status
        await stand.post({"x-tokenweir-provider-key": OWN})
        await stand.post({"x-tokenweir-key": "own"}, OWN)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"electron" in written
    assert OWN.encode() not in written
    assert OWN not in caplog.text
    assert OWN not in repr(stand.gateway.outbox.records)


async def test_a_stream_is_not_kept_to_be_resumed(stand: Stand) -> None:
    stand.provider.type, stand.provider.body = "text/event-stream", b'data: {"id":"c","choices":[]}\n\ndata: [DONE]\n\n'
    sizes = []
    for headers, key in (({"x-tokenweir-provider-key": OWN}, "own"), ({}, "ours")):
        assert (await stand.post(headers, key, stream=True)).status == 200
        sizes.append(stand.tapes.size > 0)
    assert sizes == [False, True]


async def test_without_the_providers_consent_no_credential_is_sent(tmp_path: Path) -> None:
    async with standing(tmp_path, byok=False) as stand:
        response = await stand.post({"x-tokenweir-provider-key": OWN})
        assert (response.status, json.loads(response.body)["error"]["code"]) == (403, "byok_model_not_allowed")
        assert stand.provider.heads == []


LATER = [
    b"GET /v1/responses/resp_1 HTTP/1.1",
    b"POST /v1/responses/resp_1/cancel HTTP/1.1",
    b"GET /v1/exchanges/01936d2e-0000-7000-8000-000000000001/stream HTTP/1.1",
]


@pytest.mark.parametrize("line", LATER)
async def test_what_outlives_a_request_is_refused(stand: Stand, line: bytes) -> None:
    head = f"Host: a\r\nAuthorization: Bearer own\r\nx-tokenweir-provider-key: {OWN}\r\nContent-Length: 0\r\n\r\n"
    if line.startswith(b"GET"):
        head = head.replace("Content-Length: 0\r\n", "")
    response = await stand.send(line + b"\r\n" + head.encode())
    assert (response.status, json.loads(response.body)["error"]["code"]) == (400, "byok_not_supported")
    assert stand.provider.heads == []


async def test_a_websocket_is_declined_so_that_clients_use_http(stand: Stand) -> None:
    head = (
        "GET /v1/responses HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nAuthorization: Bearer {}\r\n{}\r\n"
    )
    for key, more in (("own", ""), ("ours", f"x-tokenweir-provider-key: {OWN}\r\n")):
        assert (await stand.send(head.format(key, more).encode())).status == 426
    assert stand.provider.heads == []
