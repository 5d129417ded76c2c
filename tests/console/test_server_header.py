"""No answer of either listener says what the proxy is made of."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.console.serving import SECRET
from tests.support.net import connect
from tests.support.tokenweir import Tokenweir

HOST = b"Host: test\r\n"
LONG = 200_000


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: test", *headers, "", ""]).encode()


def post(path: str, body: bytes, *headers: str) -> bytes:
    return get(path, f"Content-Length: {len(body)}", *headers, method="POST") + body


# The request, and the status of its answer at each listener: the clients', the console's. None: not tried there.
REQUESTS: dict[str, tuple[bytes, int | None, int | None]] = {
    "probe": (get("/healthz"), 200, 200),
    "head of a probe": (get("/healthz", method="HEAD"), 200, 200),
    "ready": (get("/readyz"), 200, 404),
    "metrics": (get("/metrics"), 200, 404),
    "page": (get("/"), 200, 200),
    "API": (get("/openapi.json"), 404, 200),
    "live": (get("/v1/live", f"Authorization: Bearer {SECRET}", "Accept: text/event-stream"), 404, 200),
    "no key": (get("/v1/models"), 401, 401),
    "unknown path": (get("/nothing"), 404, 404),
    "method": (get("/healthz", method="DELETE"), 405, 405),
    "unknown method": (get("/healthz", method="BREW"), 400, 400),
    "expectation": (get("/healthz", "Expect: tea"), 417, 417),
    "version": (b"GET /healthz HTTP/2.0\r\n" + HOST + b"\r\n", 505, 505),
    "no HTTP": (b"\x16\x03\x01\x02\x00\r\n\r\n", 400, 400),
    "two lengths": (get("/healthz", "Content-Length: 1", "Content-Length: 2"), 400, 400),
    "target": (get("http://elsewhere/healthz"), 400, 400),
    "long target": (get("/" + "x" * LONG), 414, 414),
    "long header": (get("/healthz", "X: " + "y" * LONG), 431, 431),
    "upgrade": (get("/healthz", "Connection: upgrade", "Upgrade: websocket"), 426, 426),
}


async def test_no_answer_names_its_server_s_software(
    tokenweir: Callable[..., Tokenweir], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADMIN", SECRET)
    one = tokenweir(admin={"port": 0, "secret": "${ADMIN}"}, request_bytes_max=1024)
    key = one.key()
    too_long = post("/v1/chat/completions", b"x" * 2000, f"Authorization: Bearer {key}")
    requests = REQUESTS | {"body": (too_long, 413, None)}
    for name, (wire, *statuses) in requests.items():
        for url, status in zip((one.url, one.console_url), statuses, strict=True):
            if status is None:
                continue
            async with await connect(url) as client:
                await client.send(wire)
                head = await client.read_head()
            assert head.status == status, (name, url)
            told = [value for field, value in head.headers if field.lower() == "server"]
            assert told == ["tokenweir"], (name, url)
            assert b"aiohttp" not in head.head.lower(), name
            assert b"python" not in head.head.lower(), name
    assert one.stop() == 0
