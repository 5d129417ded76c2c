"""A file of lines, and a provider's results, give way to other tasks however they are cut into lines."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest
from aiohttp import ClientSession

from proxy.gateway.batches import batches, lines_in
from tests.gateway.batches.asking import jsonl, line, request
from tests.gateway.batches.site import Proxy
from tests.support.examples import each
from tests.support.turns import measured_turns, nobody_waits
from tests.support.worst_bytes import talk

pytestmark = pytest.mark.io

BYTES = 100_000
PIECE_BYTES = 100

HEAD = b"""--b\r
Content-Disposition: form-data; name="purpose"\r
\r
batch\r
--b\r
Content-Disposition: form-data; name="file"; filename="b.jsonl"\r
\r
"""


async def upload(proxy: Proxy, content: bytes, *, packed: bool = False) -> tuple[int, Any]:
    body = HEAD + content + b"\r\n--b--\r\n"
    headers = {"Authorization": "Bearer anna", "Content-Type": "multipart/form-data; boundary=b"}
    if packed:
        body = gzip.compress(body, 1)
        headers["Content-Encoding"] = "gzip"
    async with (
        ClientSession() as http,
        http.post(f"{proxy.url}/v1/files", data=body, headers=headers) as answer,
    ):
        return answer.status, await answer.json()


@pytest.mark.usefixtures("each_step_is_a_turn")
@pytest.mark.parametrize(
    ("blank", "packed"),
    [(b"\n", False), (b"\n", True), (b"\r\n", False), (b"\r", False), (b" ", False), (b" \t\v\f\r\n", False)],
)
async def test_a_file_of_blank_lines_is_refused_without_delaying_others(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, blank: bytes, *, packed: bool
) -> None:
    monkeypatch.setattr(lines_in, "BLANK_BYTES", PIECE_BYTES)
    async with measured_turns() as turns:
        status, answer = await upload(proxy, blank * (BYTES // len(blank)), packed=packed)
    assert (status, answer["error"]["code"]) == (400, "empty_batch")
    assert turns.count >= BYTES // PIECE_BYTES


@pytest.mark.parametrize("blank_bytes", [1, 4, lines_in.BLANK_BYTES])
async def test_blank_lines_are_counted(proxy: Proxy, monkeypatch: pytest.MonkeyPatch, blank_bytes: int) -> None:
    monkeypatch.setattr(lines_in, "BLANK_BYTES", blank_bytes)
    content = b"\xef\xbb\xbf\n \r\n\n   " + jsonl(line("a")) + b"\n\n\t\n" + jsonl(line("b")) + b"\n   [1\n"
    status, answer = await upload(proxy, content)
    assert status == 400
    assert answer["error"]["message"].startswith("line 10, The request body is not valid JSON")
    assert answer["error"]["message"].endswith("at character 5.")


NOT_AN_ARRAY = "requests: must be an array, and the only member of a JSON object"
FIRST = json.dumps(request("a")).encode()
REQUESTS = {
    b'{"requests":[' + b"0," * BYTES + b"0]}": "requests[0]: must be an object",
    b'{"requests":[' + b"{}," * 500 + b"{}]}": "requests[0].custom_id: is missing",
    b'{"requests":[' + b"[" * (batches.BRACKETS_MAX + 9): "requests[0]: must be an object",
    b'{"requests":[{"custom_id":'
    + b"[" * (batches.BRACKETS_MAX + 9): "The request body is nested deeper than 64 levels.",
    b'{"requests":[{"custom_id":[' + b"{}," * BYTES: "The request body has more than 50000 arrays and objects.",
    b'{"requests":[' + b" " * BYTES + b"]}": "The batch has no requests.",
    b'{"requests":[' + FIRST + b" " * BYTES: NOT_AN_ARRAY,
    b'{"requests":[' + FIRST + b",]}": NOT_AN_ARRAY,
    b'{"requests":[' + FIRST + FIRST + b"]}": NOT_AN_ARRAY,
    b'{"requests":[' + FIRST + b"," + b"7," * BYTES + FIRST + b"]}": "requests[1]: must be an object",
    b'{"requests":[' + FIRST + b'],"requests":[]}': NOT_AN_ARRAY,
    b'{"requests":[' + FIRST + b"}}": NOT_AN_ARRAY,
    b"[" + FIRST + b"]": NOT_AN_ARRAY,
}


@pytest.mark.usefixtures("each_step_is_a_turn")
@pytest.mark.parametrize(
    ("number", "piece_bytes"),
    each(
        3,
        [(number, PIECE_BYTES) for number in range(len(REQUESTS))]
        + [(number, batches.PIECE_BYTES) for number, body in enumerate(REQUESTS) if len(body) < BYTES],
    ),
)
async def test_a_body_of_requests_is_refused_without_delaying_others(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, number: int, piece_bytes: int
) -> None:
    body, message = list(REQUESTS.items())[number]
    monkeypatch.setattr(batches, "PIECE_BYTES", piece_bytes)
    headers = {"x-api-key": "anna", "anthropic-version": "2023-06-01", "Content-Encoding": "gzip"}
    async with (
        measured_turns() as turns,
        ClientSession() as http,
        http.post(f"{proxy.url}/v1/messages/batches", data=gzip.compress(body, 1), headers=headers) as answer,
    ):
        document = await answer.json()
    assert (answer.status, document["error"]["message"]) == (400, message)
    assert turns.count >= min(len(body), BYTES) // piece_bytes - 1  # it gives way between two pieces


LONG = "How much water goes over the weir?\n" * 25_000


@pytest.mark.parametrize("content", [LONG, [{"type": "text", "text": "x"}] * 20_000], ids=["text", "parts"])
@pytest.mark.parametrize("in_file", [True, False], ids=["file", "requests"])
async def test_one_long_request_is_read_and_sent_without_delaying_others(
    proxy: Proxy, content: Any, *, in_file: bool
) -> None:
    messages = [{"role": "user", "content": content}]
    body, kind, path = jsonl(line("a", messages=messages)), "multipart/form-data; boundary=b", "/v1/files"
    if in_file:
        body = HEAD + body + b"\r\n--b--\r\n"
    else:
        body, kind = json.dumps({"requests": [request("a", messages=messages)]}).encode(), "application/json"
        path = "/v1/messages/batches"
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nx-api-key: anna\r\nContent-Type: {kind}\r\nConnection: close\r\n"
    head += f"Content-Length: {len(body)}\r\n" + ("" if in_file else "anthropic-version: 2023-06-01\r\n") + "\r\n"
    port = int(proxy.url.rpartition(":")[2])

    async def sent() -> None:
        answer = await asyncio.to_thread(talk, port, head.encode() + body, b"\0")
        assert answer.startswith(b"HTTP/1.1 200 ")

    await nobody_waits(sent)
