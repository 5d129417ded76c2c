"""What passes through a session: frames in both directions, close codes, pings, subprotocols; and who gets none."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSMsgType, WSServerHandshakeError
from aiohttp.http import WebSocketWriter

from proxy.http import websocket
from proxy.http.cors import Cors
from proxy.http.framing import read_head
from proxy.http.websocket_head import chosen
from proxy.settings import CredentialSettings, Secret
from tests.gateway.inprocess import KEY, OfToken
from tests.gateway.websocket.sockets import CREATE, REALTIME, RESPONSES, Limited, Stage, begun, done, stage, tell
from tests.support.net import RawClient, Response, connect, listening
from tests.support.socket_provider import SocketProvider

pytestmark = pytest.mark.io

UPGRADE = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
AUTHORIZED = "Authorization: Bearer k\r\n"
SECRET = "tw-k"


@pytest.fixture
async def on(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage(tmp_path, keys=OfToken(k=KEY)) as made:
        yield made


async def raw(on: Stage, path: str = REALTIME, more: str = AUTHORIZED, head: str = UPGRADE) -> RawClient:
    client = await connect(on.gateway.url)
    await client.send(f"GET {path} HTTP/1.1\r\nHost: test\r\n{head}{more}\r\n".encode())
    return client


async def refused(on: Stage, path: str = REALTIME, more: str = AUTHORIZED, head: str = UPGRADE) -> Response:
    async with await raw(on, path, more, head) as client:
        return await client.read()


# -- frames


async def test_messages_pass_in_both_directions_as_they_are(on: Stage) -> None:
    async with on.talk() as (client, link):
        down = '{"type":"rate_limits.updated",  "x":"é水\\u0000", "n":1e400}'
        await link.socket.send_str(down)
        assert (await client.receive()).data == down
        await link.socket.send_bytes(b"\x00\xff\x80")
        assert await client.receive() == (WSMsgType.BINARY, b"\x00\xff\x80", "")
        up = '{"type": "output_audio_buffer.clear" ,"zoë":"水"}'
        await client.say(up, b"\xff\x00", '{"type":"x"}')
        await link.until(lambda one: len(one.heard) == 3)
        assert link.heard == [json.loads(up), b"\xff\x00", {"type": "x"}]
        assert link.kinds == [WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.TEXT]


async def test_both_sides_may_speak_at_once(on: Stage) -> None:
    messages = 300
    async with on.talk() as (client, link):

        async def speak() -> None:
            for number in range(messages):
                await link.say({"type": "noted", "number": number, "x": "y" * 2000})

        async def listen() -> list[int]:
            return [(await client.hear())["number"] for _ in range(messages)]

        async def answer() -> None:
            for number in range(messages):
                await client.say({"type": "note", "number": number, "x": "y" * 2000})

        _, heard, _ = await asyncio.gather(speak(), listen(), answer())
        await link.until(lambda one: len(one.heard) == messages)
        assert heard == [one["number"] for one in link.heard] == list(range(messages))


async def test_a_message_in_fragments_is_read_as_one(on: Stage) -> None:
    """So a request cannot hide in them."""
    async with on.talk() as (client, link):
        writer = client.socket._writer
        assert isinstance(writer, WebSocketWriter)
        text = json.dumps({"type": "response.create", "response": {"max_output_tokens": 5}}).encode()
        for frame in (
            _frame(0x01, text[:9]),
            _frame(0x89, b"between"),
            _frame(0x00, text[9:20]),
            _frame(0x80, text[20:]),
        ):
            writer.transport.write(frame)
        assert (await link.hear("response.create"))["response"] == {"max_output_tokens": 5}
        assert on.gateway.outbox.opened == 1


def _frame(first: int, payload: bytes) -> bytes:
    """Masked, as a client must, with a mask that changes nothing."""
    return bytes([first, 0x80 | len(payload)]) + bytes(4) + payload


@pytest.mark.parametrize(("code", "reason"), [(1000, "genug"), (3777, ""), (4999, "x" * 123), (1001, "")])
async def test_close_codes_and_reasons_pass(on: Stage, code: int, reason: str) -> None:
    async with on.talk() as (client, link):
        await client.socket.close(code=code, message=reason.encode())
        assert await link.until_gone() == (code, reason)
    async with on.talk() as (client, link):
        await link.socket.close(code=code, message=reason.encode())
        assert await client.hear_end() == (code, reason)


async def test_a_close_frame_without_a_code_stays_one(on: Stage) -> None:
    async with on.talk() as (client, link):
        writer = client.socket._writer
        assert isinstance(writer, WebSocketWriter)
        await writer.send_frame(b"", WSMsgType.CLOSE)
        assert await link.until_gone() == (0, "")


async def test_pings_are_answered_hop_by_hop(on: Stage) -> None:
    async with on.talk(autoping=False) as (client, link):
        await client.socket.ping(b"mine")
        assert await client.receive() == (WSMsgType.PONG, b"mine", "")
        await client.say({"type": "x"})
        await link.hear("x")
        assert link.kinds == [WSMsgType.TEXT]


async def test_nothing_is_compressed(on: Stage) -> None:
    async with on.client(compress=15) as client:
        assert client.socket.compress == 0
        link = await on.provider.link()
        assert "Sec-WebSocket-Extensions" not in link.headers
        await link.say({"type": "x"})
        assert await client.hear() == {"type": "x"}


@pytest.mark.parametrize("kind", ["text", "binary"])
async def test_a_message_has_a_limit(on: Stage, kind: str) -> None:
    """The same as a request's body."""
    async with on.talk() as (client, link):
        text = '{"type":"x","y":"' + "z" * (1 << 20) + '"}'
        await client.say(text if kind == "text" else text.encode())
        code, reason = await client.hear_end()
        assert code == 1009
        assert reason == f"This message is longer than {1 << 20} bytes."
        assert await link.until_gone() == (1001, "")
        assert link.heard == []


async def test_a_client_that_breaks_the_protocol_is_told(on: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "CLOSE_S", 0.2)  # it answers no close frame
    async with await raw(on) as client:
        response = await client.read_head()
        assert response.status == 101
        link = await on.provider.link()
        await client.send(b"\x83\x00")  # no such opcode
        assert (await client.read_body(response)).body[:4] == b"\x88" + bytes([len(response.body) - 2]) + b"\x03\xea"
        assert await link.until_gone() == (1001, "")


async def test_what_is_in_memory_of_messages_is_bounded(on: Stage) -> None:
    uploads = on.gateway.handler._uploads
    before = uploads.bytes_left
    uploads.bytes_left = 1000
    async with on.talk() as (client, link):
        await client.say({"type": "x", "y": "z" * 200})
        await link.hear("x")
        await client.say('{"type":"x","y":"' + "z" * 5000 + '"}')
        assert (await client.hear_end())[0] == 1013
        await link.until_gone()
    await on.until_over()
    assert uploads.bytes_left == 1000, "all of it is given back"
    uploads.bytes_left = before


async def test_memory_is_given_back_with_each_message(on: Stage) -> None:
    uploads = on.gateway.handler._uploads
    before = uploads.bytes_left
    async with on.talk() as (client, link):
        for size in (10, 70_000, 500_000, 10):
            await client.say({"type": "x", "y": "z" * size})
            assert len((await link.hear("x"))["y"]) == size
        await client.say({"type": "x", "y": ""})
        await link.hear("x")
        assert before - uploads.bytes_left < 200
    await on.until_over()
    assert uploads.bytes_left == before


async def test_who_does_not_read_is_not_read_for(on: Stage) -> None:
    """A client that reads nothing stops its provider after a few hundred kilobytes, and gets all of it in the end."""
    size, most = 50_000, 400
    written = 0
    async with on.talk() as (client, link):
        client.transport.pause_reading()

        async def speak() -> None:
            nonlocal written
            for number in range(most):
                await link.say({"type": "noted", "number": number, "x": "y" * size})
                written += 1

        speaking = asyncio.get_running_loop().create_task(speak())
        before = -1
        while written != before:
            before = written
            await asyncio.sleep(0.2)
        assert written < most // 2, "20 MB were not taken"
        assert on.session._client.writing_since is not None
        client.transport.resume_reading()
        assert [(await client.hear())["number"] for _ in range(most)] == list(range(most))
        await speaking


async def test_a_provider_that_does_not_read_stops_its_client(on: Stage) -> None:
    """Once the kernel's buffers are full, which hold more than what is held here."""
    size, most = 50_000, 600
    written = 0
    on.provider.reads.clear()
    async with on.talk() as (client, link):

        async def speak() -> None:
            nonlocal written
            while written < most:
                await client.say({"type": "note", "number": written, "x": "y" * size})
                written += 1

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(speak())
            before = -1
            socket = on.line.socket
            while written != before or socket.writing_since is None:
                before = written
                assert written < most
                await asyncio.sleep(0.1)
            most = written + 3
            on.provider.reads.set()
        await link.until(lambda one: len(one.heard) == most)


# -- the handshake


async def test_headers_and_keys_go_up_as_of_any_request(tmp_path: Path) -> None:
    async with stage(tmp_path, keys=OfToken(k=KEY), api_key=Secret("sk-of-the-provider")) as on:
        more = {"Authorization": "Bearer k", "OpenAI-Beta": "realtime=v1", "Cookie": "c=1", "X-Api-Version": "7"}
        async with on.talk(f"{REALTIME}&api-version=9&intent=x", headers=more) as (_, link):
            assert (link.path, link.query) == ("/v1/realtime", "intent=x&model=electron")
            assert link.headers["Authorization"] == "Bearer sk-of-the-provider"
            assert link.headers["OpenAI-Beta"] == "realtime=v1"
            assert not {"Cookie", "X-Api-Version", "Origin"} & set(link.headers)


@pytest.mark.parametrize(
    ("path", "query"),
    [("/openai/realtime?api-version=2025-04-01-preview&deployment=electron",
      "api-version=2025-04-01-preview&deployment=electron"),
     ("/openai/v1/realtime?model=electron", "model=electron")],
)  # fmt: skip
async def test_azure_s_paths_and_header(path: str, query: str, tmp_path: Path) -> None:
    speaks = ("azure.realtime", "azure.realtime_v1", "azure.responses_v1")
    async with stage(tmp_path, api_key=Secret("sk-of-azure"), dialects=speaks) as on:
        async with on.talk(path, headers={"api-key": "k"}) as (client, link):
            below = link.path.removeprefix("/v1")  # Azure's base URL ends with `/openai`
            assert (f"/openai{below}", link.query) == (path.partition("?")[0], query)
            assert link.headers["api-key"] == "sk-of-azure"
            assert "Authorization" not in link.headers
            await client.say({"type": "response.create"})
            await link.hear("response.create")
            await tell(client, link, begun(), done())
        async with on.client("/openai/v1/responses", headers={"api-key": "k"}) as client:
            await client.say(CREATE)
            await (await on.provider.link(1)).hear("response.create")
    assert {record.opened.endpoint for record in on.records} == {path.partition("?")[0], "/openai/v1/responses"}


class OfACloud:
    """Credentials that are fetched for each request."""

    async def authorized(self, request: bytes) -> bytes:
        return request.replace(b"\r\n", b"\r\nAuthorization: Bearer of-a-cloud\r\n", 1)

    def is_revealed_by(self, body: bytes) -> bool:
        return b"of-a-cloud" in body


async def test_credentials_of_a_cloud_open_websockets_too(on: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on.gateway.provider, "authorization", OfACloud())
    async with on.talk() as (_, link):
        assert link.headers["Authorization"] == "Bearer of-a-cloud"


async def test_a_page_sends_its_key_as_a_subprotocol(tmp_path: Path) -> None:
    provider = SocketProvider(protocols=("realtime",))
    async with stage(tmp_path, keys=OfToken(**{SECRET: KEY}), provider=provider) as on:
        offered = (
            "openai-insecure-api-key." + SECRET,
            "openai-organization.org-1",
            "realtime",
            "openai-beta.realtime-v1",
        )
        async with on.talk(headers={}, protocols=offered) as (client, link):
            assert link.headers["Sec-WebSocket-Protocol"] == "realtime, openai-beta.realtime-v1"
            assert client.socket.protocol == "realtime"
            assert SECRET not in str(link.headers) + link.query
        wrong = ("realtime", "openai-insecure-api-key.tw-of-nobody")
        with pytest.raises(WSServerHandshakeError) as unauthorized:
            async with on.client(headers={}, protocols=wrong):
                pass
        assert unauthorized.value.status == 401
        async with on.client(RESPONSES, headers={}, protocols=offered) as client:
            assert client.socket.protocol == "realtime", "one is chosen before a provider is asked"


async def test_a_provider_that_chooses_what_nobody_offered_is_none(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:

        async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n")
            await reader.read()
            writer.close()

        origin = on.gateway.provider.origin
        async with listening(odd) as url:
            on.gateway.provider.origin = origin._replace(port=int(url.rpartition(":")[2]))
            assert (await refused(on)).status == 502
        on.gateway.provider.origin = origin


@pytest.mark.parametrize(
    ("path", "more", "head", "status", "code"),
    [
        (REALTIME, "", UPGRADE, 401, "invalid_api_key"),
        (REALTIME, "Authorization: Bearer x\r\n", UPGRADE, 401, "invalid_api_key"),
        (REALTIME + "&key=k", "", UPGRADE, 401, "invalid_api_key"),
        ("/v1/realtime", None, UPGRADE, 400, "invalid_value"),
        ("/v1/realtime?model=", None, UPGRADE, 400, "invalid_value"),
        ("/v1/realtime?model=electron&model=proton", None, UPGRADE, 400, "invalid_value"),
        ("/v1/realtime?model=proton", None, UPGRADE, 404, "model_not_found"),
        (REALTIME, None, UPGRADE.replace("13", "8"), 426, None),
        (REALTIME, None, UPGRADE.replace("dGhl", "dGh"), 400, None),
        (REALTIME, None, UPGRADE.replace("Connection: Upgrade", "Connection: close"), 400, None),
        (REALTIME, None, UPGRADE.replace("websocket", "websoc\N{KELVIN SIGN}et"), 426, "upgrade_not_supported"),
        (REALTIME, None, UPGRADE.replace("websocket", "websocket\N{NO-BREAK SPACE}"), 426, "upgrade_not_supported"),
        (REALTIME, None, UPGRADE.replace("n: Upgrade", "n: Upgrade\N{NO-BREAK SPACE}"), 400, None),
        (REALTIME, "Sec-WebSocket-Protocol: a b\r\n", UPGRADE, 401, "invalid_api_key"),
        (REALTIME, "Authorization: Bearer k\r\nSec-WebSocket-Protocol: a b\r\n", UPGRADE, 400, None),
        (REALTIME, "Authorization: Bearer k\r\nOrigin: https://app.example\r\n", UPGRADE, 403, "origin_not_allowed"),
        (REALTIME, None, "", 426, "upgrade_required"),
        ("/v1/chat/completions", None, UPGRADE, 426, "upgrade_not_supported"),
        ("/v1/nothing", None, UPGRADE, 426, "upgrade_not_supported"),
        ("/v1/responses", None, "", 405, "method_not_allowed"),
    ],
)
async def test_a_session_that_is_refused_is_an_http_response(
    on: Stage, path: str, more: str | None, head: str, status: int, code: str | None
) -> None:
    response = await refused(on, path, "Authorization: Bearer k\r\n" if more is None else more, head)
    assert (response.status, json.loads(response.body)["error"]["code"]) == (status, code)
    assert response.header("Connection") in ("close", "upgrade, close") or head == ""
    assert on.provider.links == []


async def test_what_speaks_websocket_only_says_so(on: Stage) -> None:
    for method in ("GET", "POST"):
        async with await connect(on.gateway.url) as client:
            await client.send(f"{method} {REALTIME} HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n".encode())
            response = await client.read()
        assert (response.status, response.header("Upgrade")) == (426, "websocket")


@pytest.mark.parametrize("path", ["/v1/realtime/client_secrets", "/v1/realtime/sessions", "/v1/realtime/calls"])
async def test_nobody_gets_a_way_past_the_meter(on: Stage, path: str) -> None:
    async with await connect(on.gateway.url) as client:
        await client.send(f"POST {path} HTTP/1.1\r\nHost: t\r\n{AUTHORIZED}Content-Length: 2\r\n\r\n{{}}".encode())
        assert (await client.read()).status == 404
    assert (await refused(on, f"{path}?model=electron")).status == 426


@pytest.mark.parametrize("path", ["/realtime", "/v1/realtime/", "//v1/realtime", "/v1/v1/realtime"])
async def test_base_urls_as_people_type_them_lead_there(on: Stage, path: str) -> None:
    async with on.talk(f"{path}?model=electron") as (_, link):
        assert link.query == "model=electron"


@pytest.mark.parametrize(
    ("origin", "status"), [("https://app.example", 101), ("https://evil.example", 403), (None, 101)]
)
async def test_a_page_of_a_configured_origin_may_connect(tmp_path: Path, origin: str | None, status: int) -> None:
    async with stage(tmp_path, cors=Cors(["https://app.example"])) as on:
        more = "Authorization: Bearer k\r\n" + (f"Origin: {origin}\r\n" if origin else "")
        async with await raw(on, more=more) as client:
            assert (await client.read_head()).status == status


@pytest.mark.parametrize(
    ("answer", "status", "code", "message"),
    [
        ((400, {"error": {"message": "No such voice.", "code": "bad_voice"}}), 400, "bad_voice", "No such voice."),
        ((403, {"error": {"message": "Not here."}}), 403, "upstream_refused", "Not here."),
        ((429, {"error": {"message": "Slow down.", "code": "too_fast"}}), 429, "too_fast", "Slow down."),
        ((404, {"error": {"message": "No such model.", "code": "no_model"}}), 404, "no_model", "No such model."),
        ((401, {"error": {"message": "Wrong key."}}), 502, "upstream_auth", None),
        ((500, {"error": {"message": "sk-of-the-provider"}}), 502, "upstream_failed", None),
        ((503, None), 503, "upstream_refused", "The provider refused the connection."),
        ((302, None), 502, "upstream_failed", None),
        ((404, {"detail": "Not Found"}), 400, "endpoint_not_supported", None),
        ((405, None), 400, "endpoint_not_supported", None),
        ((200, {"ok": True}), 502, "upstream_failed", None),
    ],
)  # fmt: skip
async def test_a_provider_s_refusal_is_passed_on_unless_it_is_the_operator_s(
    tmp_path: Path, answer: Any, status: int, code: str, message: str | None
) -> None:
    async with stage(tmp_path, api_key=Secret("sk-of-the-provider")) as on:
        on.provider.refuses = answer
        response = await refused(on)
        error = json.loads(response.body)["error"]
        assert (response.status, error["code"]) == (status, code)
        assert message is None or error["message"] == message
        assert b"sk-of" not in response.body


async def test_another_credential_is_tried(tmp_path: Path) -> None:
    credentials = tuple(
        CredentialSettings(name=f"c{number}", api_key=Secret(f"sk-{number}"), weight=1) for number in (1, 2)
    )
    async with stage(tmp_path, credentials=credentials) as on:
        async with on.talk() as (client, link):
            first = link.headers["Authorization"]
            await client.say({"type": "response.create"})
            await link.hear("response.create")
            await tell(client, link, begun(), done())
        record = await on.record()
        assert record.details["credential"] == f"c{first[-1]}"


async def test_a_key_leaves_sessions_to_others(tmp_path: Path) -> None:
    keys = OfToken(k=KEY, other=replace(KEY, key_id="other"))
    async with stage(tmp_path, keys=keys) as on:
        on.gateway.sockets._request_limits.sockets_per_key_max, on.gateway.sockets._sessions_max = 2, 3
        async with on.client(RESPONSES) as first, on.client(RESPONSES):
            response = await refused(on, RESPONSES)
            error = json.loads(response.body)["error"]
            assert (response.status, error["code"]) == (429, "rate_limit_exceeded")
            assert error["message"] == "This key may have 2 WebSockets open. Please try again later."
            async with on.client(RESPONSES, headers={"Authorization": "Bearer other"}):
                assert (await refused(on, RESPONSES)).status == 429
            await first.socket.close()
            await on.until(lambda: on.gateway.sockets._sessions_of["k"] == 1)
            async with on.client(RESPONSES):
                pass


async def test_a_key_that_may_run_few_requests_has_few_sessions(tmp_path: Path) -> None:
    async with stage(tmp_path, keys=Limited()) as on, AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(on.client(RESPONSES))
        error = json.loads((await refused(on, RESPONSES)).body)["error"]
        assert error["message"].startswith("This key may have 4 WebSockets open (1 requests at once).")


async def test_sessions_are_bounded(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        on.gateway.sockets._sessions_max = 2
        async with on.client(RESPONSES), on.client(RESPONSES):
            assert (await refused(on, RESPONSES)).status == 503
        await on.until_over()
        async with on.client(RESPONSES):
            pass
        await on.until(lambda: not on.gateway.sockets._sessions_of)


async def test_a_client_that_leaves_during_its_handshake_leaves_nothing(on: Stage) -> None:
    held = asyncio.Event()

    async def greet(_link: object) -> None:
        await held.wait()

    on.provider.greets = greet
    async with await raw(on):
        await on.provider.link()
    held.set()
    await on.until(lambda: not on.gateway.sockets._sessions_of)


async def test_the_wrong_key_of_a_provider_s_handshake_is_found() -> None:
    good = b"HTTP/1.1 101 X\r\nUpgrade: WebSocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"
    key = b64encode(b"the sample nonce").decode()
    assert chosen(read_head(good), key, ()) is None
    assert chosen(read_head(good + b"Sec-WebSocket-Protocol: a\r\n"), key, ("a", "b")) == "a"
    for head in (
        good.replace(b"s3p", b"s3q"), good.replace(b"WebSocket\r", b"h2c\r"), good + b"Sec-WebSocket-Protocol: c\r\n",
        good + b"Sec-WebSocket-Extensions: permessage-deflate\r\n",
    ):  # fmt: skip
        with pytest.raises(ValueError):
            chosen(read_head(head), key, ("a", "b"))
