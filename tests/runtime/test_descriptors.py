"""A process whose descriptors run out before its first request needs nothing from the disk for it: it refuses what it
cannot do with 503, and serves again as soon as it can."""

from __future__ import annotations

import gzip
import json
import resource
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.net import ask, chat_request, connect, free_port
from tests.support.tokenweir import COMMAND, Tokenweir, provider_section

pytestmark = pytest.mark.process

BOUNDARY = "b"
SPEECH = b"""--b\r
Content-Disposition: form-data; name="model"\r
\r
electron\r
--b\r
Content-Disposition: form-data; name="file"; filename="a.wav"\r
\r
RIFF\r
--b--\r
"""
FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
UPGRADE = {
    "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}  # fmt: skip
BUSY = ("chat", "chat with a byte order mark", "chat in gzip", "embeddings")
PROMPT = {"model": "electron", "max_tokens": 9, "messages": [{"role": "user", "content": "Wasser, 水, 💧"}]}
GEMINI = {"contents": [{"role": "user", "parts": [{"text": "Wasser"}]}]}


def get(path: str, key: str, fields: Mapping[str, str]) -> bytes:
    lines = (
        f"{name}: {value}\r\n" for name, value in {"Host": "x", "Authorization": f"Bearer {key}", **fields}.items()
    )
    return f"GET {path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode()


def requests(key: str) -> dict[str, bytes]:
    """One of each kind."""
    packed = gzip.compress(json.dumps(PROMPT).encode())
    return {
        "chat": chat_request(ask("electron"), key=key),
        "chat with a byte order mark": chat_request(b"\xef\xbb\xbf" + json.dumps(PROMPT).encode(), key=key),
        "chat in gzip": chat_request(packed, headers={"Content-Encoding": "gzip"}, key=key),
        "messages": chat_request(PROMPT, path="/v1/messages", key=key),
        "responses": chat_request({"model": "electron", "input": "Wasser"}, path="/v1/responses", key=key),
        "embeddings": chat_request({"model": "electron", "input": "Wasser"}, path="/v1/embeddings", key=key),
        "gemini": chat_request(GEMINI, path="/v1beta/models/electron:generateContent", key=key),
        "transcription": chat_request(SPEECH, path="/v1/audio/transcriptions", headers=FORM, key=key),
        "models": get("/v1/models", key, {}),
        "stored response": get("/v1/responses/resp_1", key, {}),
        "file": get("/v1/files/file-1", key, {}),
        "websocket": get("/v1/responses", key, UPGRADE),
        "metrics": get("/metrics", key, {}),
        "an unknown key": chat_request(ask("electron"), key="tw-" + "0" * 40),
    }


@pytest.mark.thorough
async def test_the_first_requests_may_find_no_descriptors(tmp_path: Path) -> None:
    provider = provider_section(f"http://localhost:{free_port()}/v1")
    running = Tokenweir(tmp_path, providers={"own": provider})
    running.program = COMMAND  # a copy of this process has imported everything
    key = running.key()
    running.start()
    try:
        statuses = await asked_without_descriptors(running, requests(key))
    finally:
        running.close()
    assert {name: status for name, status in statuses.items() if status >= 500 and status != 503} == {}
    assert {name: statuses[name] for name in BUSY} == dict.fromkeys(BUSY, 503), statuses


async def asked_without_descriptors(running: Tokenweir, wires: Mapping[str, bytes]) -> dict[str, int]:
    """Ask on connections that are open. Afterwards it serves: the provider is not there."""
    assert running.child is not None
    async with AsyncExitStack() as stack:
        clients = {name: await stack.enter_async_context(await connect(running.url)) for name in (*wires, "after")}
        for client in clients.values():
            await client.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await client.read()).status == 200
        soft, hard = resource.prlimit(running.child.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(running.child.pid, resource.RLIMIT_NOFILE, (1, hard))
        statuses = {}
        for name, wire in wires.items():
            await clients[name].send(wire)
            statuses[name] = (await clients[name].read_head()).status
        resource.prlimit(running.child.pid, resource.RLIMIT_NOFILE, (soft, hard))
        await clients["after"].send(wires["chat"])
        assert (await clients["after"].read()).status == 502
    return statuses
