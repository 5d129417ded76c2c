"""Identity providers that are slow, down or broken: each gives a clear error, in bounded time and memory."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from proxy.foundation.secret import Secret
from proxy.foundation.tls import client_context
from proxy.identity.documents import DocumentClient, IdentityProviderError, KeptDocument
from tests.support.certificates import Authority
from tests.support.connect_proxy import connect_proxy
from tests.support.web_server import as_json, serving

pytestmark = pytest.mark.io


@pytest.fixture(scope="module")
def client() -> Iterator[DocumentClient]:
    return DocumentClient(client_context(), answer_s=5)


async def failure(client: DocumentClient, url: str) -> str:
    with pytest.raises(IdentityProviderError) as caught:
        await client.get(url)
    return str(caught.value)


async def large(request: web.BaseRequest, sent: list[int]) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(640):
        await response.write(b" " * 65_536)
        sent[0] += 65_536
    return response


async def test_what_an_identity_provider_must_not_answer(client: DocumentClient) -> None:
    sent = [0]

    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        match request.path:
            case "/large":
                return await large(request, sent)
            case "/redirect":
                return web.Response(status=302, headers={"Location": "/fine"})
            case "/gzip":
                return web.Response(body=gzip.compress(b"{}"), headers={"Content-Encoding": "gzip"})
            case "/error":
                return as_json({}, 500)
            case "/html":
                return web.Response(text="<html>", content_type="text/html")
            case "/deep":
                return web.Response(body=b"[" * 100_000)
            case "/bytes":
                return web.Response(body=b'"\xff\xfe"')
            case "/cut":
                assert request.transport is not None
                request.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")
                request.transport.close()
                return web.Response()
        return as_json({"cookie": request.headers.get("Cookie")})

    async with serving(serve) as url:
        for path, why in (
            ("/large", "more than 256 KiB"), ("/redirect", "302, a redirect"), ("/gzip", "compressed"),
            ("/error", "500"), ("/html", "without a JSON"), ("/deep", "without a JSON"), ("/bytes", "without a JSON"),
            ("/cut", "no valid HTTP"),
        ):  # fmt: skip
            told = await failure(client, f"{url}{path}?secret=1")
            assert why in told
            assert told.startswith(f"{url}{path}: "), told
        assert sent[0] < 20 << 20
        assert await client.get(f"{url}/fine") == {"cookie": None}
    assert "cannot be reached" in await failure(client, url)
    for address in ("http://sso.example/", "ftp://127.0.0.1/", "file:///etc/passwd", "", "http://[", "x"):
        assert "is not https://" in await failure(client, address)


@pytest.mark.parametrize("beginning", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"])
async def test_a_silent_one_is_left(beginning: bytes) -> None:
    gone = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(beginning)
        while await reader.read(1024):
            pass
        writer.close()
        gone.set()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        client = DocumentClient(client_context(), answer_s=0.1)
        begun = time.monotonic()
        told = await failure(client, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        assert "does not answer within 0.1 s" in told
        assert time.monotonic() < begun + 5
        await asyncio.wait_for(gone.wait(), 5)


async def test_its_certificate_is_verified(tmp_path: Path, client: DocumentClient) -> None:
    authority = Authority(tmp_path)
    context = authority.server_context(authority.issue("sso"))

    async def serve(_: web.BaseRequest) -> web.StreamResponse:
        return as_json({})

    runner = web.ServerRunner(web.Server(serve))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    url = f"https://127.0.0.1:{runner.addresses[0][1]}/"
    try:
        assert "certificate cannot be verified" in await failure(client, url)
        assert await DocumentClient(client_context(authority.file)).get(url) == {}
    finally:
        await runner.cleanup()


async def test_through_an_http_proxy(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def serve(_: web.BaseRequest) -> web.StreamResponse:
        return as_json({})

    runner = web.ServerRunner(web.Server(serve))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=authority.server_context(authority.issue("sso"))).start()
    where = f"127.0.0.1:{runner.addresses[0][1]}"
    tls = client_context(authority.file)
    async with connect_proxy(credentials="user:pass word") as proxy:
        address = f"http://127.0.0.1:{proxy.port}"
        assert await DocumentClient(tls, address, Secret("user:pass word")).get(f"https://{where}/") == {}
        told = await failure(DocumentClient(tls, address), f"https://{where}/")
        assert told == f"https://{where}/: the HTTP proxy answers 407"
        assert proxy.targets == [where] * 2
    assert "the HTTP proxy cannot be reached" in await failure(DocumentClient(tls, address), f"https://{where}/")
    await runner.cleanup()


async def test_who_waits_for_a_failure_gets_it() -> None:
    """One after the other they would wait for minutes."""
    now = 0.0

    async def fetch() -> None:
        nonlocal now
        await asyncio.sleep(0)
        now += 10.0
        raise IdentityProviderError("down")

    kept = KeptDocument(fetch, clock=lambda: now)
    failures = await asyncio.gather(*(kept.value() for _ in range(5)), return_exceptions=True)
    assert [str(one) for one in failures] == ["down"] * 5
    assert now == 10.0


async def test_one_fetch_serves_all_who_wait_and_none_is_spoilt_by_those_who_leave() -> None:
    fetched, go_on = 0, asyncio.Event()

    async def fetch() -> int:
        nonlocal fetched
        fetched += 1
        await go_on.wait()
        return fetched

    kept = KeptDocument(fetch)
    async with asyncio.TaskGroup() as group:
        leaving = group.create_task(kept.value())
        while fetched < 1:
            await asyncio.sleep(0)
        waiting = [group.create_task(kept.value()) for _ in range(5)]
        leaving.cancel()
        while fetched < 2:
            await asyncio.sleep(0)
        go_on.set()
    assert [task.result() for task in waiting] == [2] * 5
