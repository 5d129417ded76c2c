"""The shipped edges in front of the real proxy: TLS, HTTP/2, every route and no other, each event at once, and a client
that leaves is noticed.

The provider is a gate that a test opens, so that nothing here depends on how fast this machine is.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from aiohttp import ClientSession

from proxy.metering.dialects import DIALECTS, FAMILIES
from proxy.metering.stored_objects import OBJECT_APIS
from tests.crash.stage import quick_key
from tests.deploy.edges import Edge, program
from tests.deploy.gate import ARRAY, BINARY, EVENTS, LINES, Gate, Held
from tests.gateway.websocket.sockets import CREATE, Client, begun, completed, said
from tests.support.socket_provider import SocketProvider
from tests.support.tokenweir import PRICE, Tokenweir, provider_section

# Far beyond what a loaded machine takes: what is waited for happens, or the test fails.
PATIENCE_S = 30.0
STREAMS, CONNECTIONS = 1_000, 10
# Both sides of each stream, and what a process needs besides.
FILES_MIN = 2 * STREAMS + 256


pytestmark = [pytest.mark.external, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one_gate() -> AsyncIterator[Gate]:
    async with Gate() as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def speaking() -> AsyncIterator[SocketProvider]:
    async with SocketProvider() as made:
        yield made


@pytest.fixture
def gate(one_gate: Gate) -> Gate:
    """Shut, and nobody has left it."""
    one_gate.open.clear()
    one_gate.left = 0
    return one_gate


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, one_gate: Gate, speaking: SocketProvider
) -> Iterator[tuple[Tokenweir, str]]:
    """The real proxy in front of the gate, and a key. Models `spoken/…` are of a provider that speaks WebSocket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # children inherit it
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    providers = {
        "gate": provider_section(one_gate.base_url, dialects=list(FAMILIES)),
        "speaking": provider_section(speaking.base_url),
    }
    models = {"*": {"provider": "gate", "price": PRICE}, "spoken/*": {"provider": "speaking", "price": PRICE}}
    made = Tokenweir(tmp_path_factory.mktemp("edges"), providers=providers, models=models)
    key = quick_key(made)
    yield made.start(), key
    made.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module", params=["nginx", "haproxy", "caddy"])
def edge(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, served: tuple[Tokenweir, str]
) -> Iterator[Edge]:
    program(request.param)
    made = Edge(request.param, tmp_path_factory.mktemp("edge"), served[0].port)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("path", "held"),
    [
        ("/v1/chat/completions", EVENTS),
        ("/api/chat", LINES),
        ("/v1beta/models/MODEL:streamGenerateContent", ARRAY),
        ("/model/MODEL/converse-stream", BINARY),
    ],
    ids=["events", "lines", "array", "binary"],
)
async def test_each_event_comes_at_once_and_who_leaves_is_noticed(
    path: str, held: Held, edge: Edge, gate: Gate, served: tuple[Tokenweir, str]
) -> None:
    curl = program("curl")
    tokenweir, key = served
    model = f"arn:{edge.kind}/{held.content_type.decode().partition('/')[2]}"
    common = [curl, "-sSN", "--http2", "--cacert", str(edge.authority), "--max-time", str(PATIENCE_S)]
    url = edge.url + path.replace("MODEL", quote(model, safe=""))
    body = '{"contents": [{"parts": [{"text": "hi"}]}]}' if held is ARRAY else _body(model)
    ask = [*common, "-H", f"Authorization: Bearer {key}", "-d", body, url]

    leaving = await _run(*ask)
    assert await _event(leaving, held) == held.first
    leaving.kill()
    await gate.until_left(1, PATIENCE_S)
    await leaving.communicate()

    staying = await _run(*ask, "-w", "%{http_version} %{http_code}")
    assert await _event(staying, held) == held.first, "the gate is shut: the last event has not been sent"
    gate.open.set()
    rest, errors = await staying.communicate()
    assert rest.endswith(held.last[-14:] + b"2 200"), (rest, errors)

    entries = tokenweir.until(lambda entries: len(_of(model, entries)) >= 2)
    assert sorted(entry["outcome"] for entry in _of(model, entries)) == ["client_left", "served"]


def _spellings(path: str) -> list[str]:
    """As base URLs make them that people type."""
    short = path[3:] if path.startswith("/v1/") else path.replace("/openai/v1/", "/openai/")
    return [path, f"{path}/", f"/{path}", *([short] if short != path else [])]


ROUTES = [re.sub(r"\{\w+\}", "m", path) for dialect in DIALECTS if dialect.is_posted for path in dialect.paths]
ROUTES.append("/v1/models")
ROUTES += dict.fromkeys(api.path for api in OBJECT_APIS)


@pytest.mark.parametrize("spelling", range(4), ids=["plain", "slash after", "slash before", "without v1"])
async def test_every_route_is_reached_and_says_what_the_proxy_says(
    spelling: int, edge: Edge, served: tuple[Tokenweir, str]
) -> None:
    for path in ROUTES:
        for spelt in _spellings(path)[spelling : spelling + 1]:
            method = "GET" if path == "/v1/models" else "POST"
            asked = await _asked(served[0].port, method, spelt)
            assert asked[0] == 401, spelt
            assert await _asked(edge.port, method, spelt, edge) == asked, spelt


@pytest.mark.parametrize(
    "path",
    ["/metrics", "/healthz", "/readyz", "//metrics", "/metrics/", "/v1/../metrics", "/v1/%2e%2e/metrics", "/%6detrics",
     "/v1//../../metrics", "/v1/..//metrics", "/./metrics", "/v1/metrics", "/v1//metrics", "/chat/../metrics",
     "/openai/../readyz", "/openapi.json", "/", "/v1", "/v1x/chat/completions"],
)  # fmt: skip
async def test_what_is_for_monitors_is_nobodys_out_there(path: str, edge: Edge) -> None:
    status, body = await _asked(edge.port, "GET", path, edge)
    assert status in (400, 404), body


@pytest.mark.parametrize("path", ["/v1/realtime?model=spoken/MODEL", "/realtime?model=spoken/MODEL", "/responses"])
async def test_a_websocket_gets_through_in_both_directions(
    path: str, edge: Edge, speaking: SocketProvider, served: tuple[Tokenweir, str]
) -> None:
    model, number = f"{edge.kind}-{path[1:5]}", len(speaking.links)
    tls = ssl.create_default_context(cafile=str(edge.authority))
    url = edge.url.replace("https", "wss") + path.replace("MODEL", model)
    headers = {"Authorization": f"Bearer {served[1]}"}
    is_realtime = "realtime" in path
    async with ClientSession() as http, http.ws_connect(url, ssl=tls, headers=headers) as socket:
        client = Client(socket)
        await client.say({"type": "response.create"} if is_realtime else CREATE | {"model": f"spoken/{model}"})
        link = await speaking.link(number)
        await link.hear("response.create")
        await link.say(begun(), said("first"))
        await client.hear("response.output_text.delta")
        if is_realtime:  # what the client says meanwhile, and leaves
            await client.say({"type": "input_audio_buffer.append", "audio": "AAAA" * 100_000})
            await link.hear("input_audio_buffer.append")
            client.abort()
        else:
            await link.say(completed())
            await client.hear("response.completed")
            await link.socket.close(code=4001, message=b"enough")
            assert await client.hear_end() == (4001, "enough")
        await link.until_gone()
    outcome = "client_left" if is_realtime else "served"
    name = f"spoken/{model}"
    (entry,) = _of(name, served[0].until(lambda entries: bool(_of(name, entries))))
    assert entry["outcome"] == outcome


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/images/edits", "/v1/responses/compact"])
async def test_a_client_that_asks_for_a_websocket_where_none_is_served_is_sent_to_http(
    path: str, edge: Edge, served: tuple[Tokenweir, str]
) -> None:
    """426: the clients go on with HTTP at once. After 404, 405 or 501 they try again for ten seconds."""
    wanted = "Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    status, body = await _asked(edge.port, "GET", path, edge, more=wanted, connection="Upgrade")
    assert (status, json.loads(body)["error"]["code"]) == (426, "upgrade_not_supported")
    assert await _asked(edge.port, "POST", "/v1/responses", edge) == await _asked(
        served[0].port, "POST", "/v1/responses"
    ), "and nobody else is"


async def test_a_long_header_is_no_error(edge: Edge, served: tuple[Tokenweir, str]) -> None:
    asked = await _run(
        program("curl"), "-sS", "--http2", "--cacert", str(edge.authority), "--max-time", str(PATIENCE_S),
        "-H", f"Authorization: Bearer {served[1]}", "-H", f"Cookie: {'c' * 16_000}", "-o", "/dev/null",
        "-w", "%{http_code}", f"{edge.url}/v1/models",
    )  # fmt: skip
    assert (await asked.communicate())[0] == b"200"


@pytest.mark.parametrize(("mib", "expected"), [(60, "400"), (65, "413")])
async def test_a_body_may_be_as_large_as_the_proxy_takes_and_who_refuses_it_is_the_proxy(
    mib: int, expected: str, edge: Edge, served: tuple[Tokenweir, str], tmp_path: Path
) -> None:
    (tmp_path / "body").write_bytes(b" " * (mib << 20))  # not JSON: 400
    answer = errors = b""
    for _ in range(3):  # an edge that still sends when the refusal comes may lose its text
        asked = await _run(
            program("curl"), "-sS", "--http2", "--cacert", str(edge.authority), "--max-time", str(PATIENCE_S),
            "-H", f"Authorization: Bearer {served[1]}", "--data-binary", f"@{tmp_path / 'body'}", "-w", "%{http_code}",
            f"{edge.url}/v1/chat/completions",
        )  # fmt: skip
        answer, errors = await asked.communicate()
        assert answer[-3:].decode() == expected, (answer[-300:], errors)
        if answer[:-3]:
            break
    assert json.loads(answer[:-3])["error"]["message"]


async def test_a_thousand_streams_at_once_through_nginx(
    tmp_path: Path, gate: Gate, served: tuple[Tokenweir, str]
) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < FILES_MIN:
        pytest.skip(f"a process may not open {FILES_MIN} files here: a thousand streams do not fit")
    h2load = program("h2load")
    program("nginx")
    tokenweir, key = served
    edge = Edge("nginx", tmp_path / "edge", tokenweir.port)
    (tmp_path / "body.json").write_text(_body("thousand"))
    try:
        load = await _run(
            h2load, "-n", str(STREAMS), "-c", str(CONNECTIONS), "-m", str(STREAMS // CONNECTIONS),
            "-N", f"{PATIENCE_S:g}", "-d", str(tmp_path / "body.json"),
            "-H", f"Authorization: Bearer {key}", "-H", "Content-Type: application/json",
            f"{edge.url}/v1/chat/completions",
        )  # fmt: skip
        try:
            await gate.until_held(STREAMS, PATIENCE_S)  # all have their first event, none its last
        finally:
            gate.open.set()
            report = (await load.communicate())[0].decode()
        assert f"{STREAMS} succeeded, 0 failed, 0 errored, 0 timeout" in report, report
        assert "Application protocol: h2" in report
        entries = _of("thousand", tokenweir.until(lambda entries: len(_of("thousand", entries)) >= STREAMS))
        assert {(entry["outcome"], entry["usage_source"]) for entry in entries} == {("served", "reported")}
        assert len(entries) == STREAMS
    finally:
        edge.close()


def _body(model: str) -> str:
    return json.dumps({"model": model, "stream": True, "messages": [{"role": "user", "content": "hi"}]})


def _of(model: str, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry for entry in entries if entry["model"] == model]


async def _run(*command: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )


async def _event(client: asyncio.subprocess.Process, held: Held) -> bytes:
    assert client.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        return await client.stdout.readexactly(len(held.first))


async def _asked(
    port: int, method: str, path: str, edge: Edge | None = None, *, more: str = "", connection: str = "close"
) -> tuple[int, bytes]:
    """Status and body of a request by nobody, its path exactly as given."""
    tls = None if edge is None else ssl.create_default_context(cafile=str(edge.authority))
    length = "Content-Length: 0\r\n" if method == "POST" else ""
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("localhost" if edge else "127.0.0.1", port, ssl=tls)
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: {connection}\r\n{length}{more}\r\n"
        writer.write(head.encode())
        status = int((await reader.readline()).split()[1])
        headers = dict(line.lower().split(b": ", 1) for line in (await reader.readuntil(b"\r\n\r\n")).splitlines()[:-1])
        assert b"transfer-encoding" not in headers
        body = await reader.readexactly(int(headers.get(b"content-length", b"0")))
        writer.close()
        return status, body
