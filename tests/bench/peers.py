"""A scripted provider and a client in Python, where no C compiler builds the rig: to count calls, not to take times.

Invariant: an answer that is not the script is an error.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

from tests.bench.load import Target

_PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages"}
_QUESTION = [{"role": "user", "content": "How much of the river went by?"}]
_USAGE = {"prompt_tokens": 12, "completion_tokens": 200, "total_tokens": 212}
_SENT = {"input_tokens": 12, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 1}
_TEXT = "A weir lets the river by and tells how much of it went; it does it day and night, and that is all it does."
_ANSWER = {
    "id": "chatcmpl-bench", "object": "chat.completion", "created": 1750000000, "model": "bench",
    "choices": [{
        "index": 0, "message": {"role": "assistant", "content": _TEXT, "refusal": None},
        "logprobs": None, "finish_reason": "stop",
    }],
    "usage": {
        "prompt_tokens": 12, "completion_tokens": 26, "total_tokens": 38,
        "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0},
    },
    "system_fingerprint": "fp_bench",
}  # fmt: skip


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _chunk(**members: Any) -> str:
    told = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1750000000, "model": "bench"}
    return f"data: {_json({**told, **members})}\n\n"


def _named(name: str, **members: Any) -> str:
    return f"event: {name}\ndata: {_json({'type': name, **members})}\n\n"


def _chat(length: int) -> list[str]:
    """The pieces of a stream with so many events of text."""
    texts = [
        {"index": 0, "delta": {"content": f" 1750000000000000000 {at:08}"}, "logprobs": None, "finish_reason": None}
        for at in range(length)
    ]
    return [
        *(_chunk(system_fingerprint="fp_bench", choices=[one], service_tier="default", usage=None) for one in texts),
        _chunk(choices=[{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}], usage=None),
        _chunk(choices=[], usage=_USAGE),
        "data: [DONE]\n\n",
    ]


def _messages(length: int) -> list[str]:
    message = {"id": "msg_bench", "type": "message", "role": "assistant", "model": "bench", "content": []}
    return [
        _named("message_start", message={**message, "stop_reason": None, "usage": _SENT})
        + _named("content_block_start", index=0, content_block={"type": "text", "text": ""})
        + _named("ping"),
        *(
            _named(
                "content_block_delta", index=0, delta={"type": "text_delta", "text": f" 1750000000000000000 {at:08}"}
            )
            for at in range(length)
        ),
        _named("content_block_stop", index=0)
        + _named("message_delta", delta={"stop_reason": "end_turn"}, usage={**_SENT, "output_tokens": 200}),
        _named("message_stop"),
    ]


_STREAMS = {"chat": _chat, "messages": _messages}


class _Provider(StreamRequestHandler):
    """Answers the requests of one connection. Their `stream_of` says how long a stream is, and its pace."""

    disable_nagle_algorithm = True

    def handle(self) -> None:
        while head := _head_of(self.rfile):
            path = head.partition(" ")[2].partition(" ")[0]
            asked = json.loads(self.rfile.read(_length_of(head)))
            if asked.get("stream"):
                wire = next(wire for wire, one in _PATHS.items() if one == path)
                self._stream(_STREAMS[wire], *map(int, asked["stream_of"].split("-")))
            else:
                body = _json(_ANSWER).encode()
                head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nx-request-id: req_bench\r\n"
                self.wfile.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def _stream(self, pieces_of: Any, length: int, gap_ms: int) -> None:
        out = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
        for piece in pieces_of(length):
            out += b"%x\r\n%b\r\n" % (len(piece), piece.encode())
            if gap_ms:
                self.wfile.write(out)
                time.sleep(gap_ms / 1000)
                out = b""
        self.wfile.write(out + b"0\r\n\r\n")


def _head_of(lines: Any) -> str:
    """A head; empty if the connection has ended."""
    head = ""
    while (line := lines.readline().decode("latin-1")) not in ("\r\n", ""):
        head += line
    return head


def _length_of(head: str) -> int:
    return int(head.lower().partition("content-length:")[2].partition("\r\n")[0] or 0)


class _Server(ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


class Peers:
    """The provider and the client."""

    @contextmanager
    def provided(self) -> Iterator[int]:
        """Run the provider while the block runs; yields its port."""
        with _Server(("127.0.0.1", 0), _Provider) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.02,))
            thread.start()
            try:
                yield server.server_address[1]
            finally:
                server.shutdown()
                thread.join()

    def requests(
        self, target: Target, *, requests: int, stream: bool = False, length: int = 2, gap_ms: int = 0,
        wire: str = "chat",
    ) -> None:  # fmt: skip
        """So many requests on one connection, one after the other. `length`, `gap_ms`: of streams."""
        document: Mapping[str, Any] = {"model": "bench", "stream_of": f"{length}-{gap_ms}", "messages": _QUESTION}
        more = {"max_tokens": 1000} if wire == "messages" else {}
        body = _json({**document, **more, "stream": True} if stream else document).encode()
        head = (f"POST {_PATHS[wire]} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json",
                f"Content-Length: {len(body)}", *target.headers, "", "")  # fmt: skip
        sent, pieces = "\r\n".join(head).encode() + body, _STREAMS[wire](length)
        if wire == "chat":
            del pieces[-2]  # the usage, which was not asked for
        expected = "".join(pieces).encode() if stream else _json(_ANSWER).encode()
        with socket.create_connection(("127.0.0.1", target.port)) as connection, connection.makefile("rb") as lines:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(requests):
                connection.sendall(sent)
                answered = _head_of(lines)
                body = _chunks(lines) if stream else lines.read(_length_of(answered))
                if not answered.startswith("HTTP/1.1 200 ") or body != expected:
                    raise AssertionError(f"not the script: {answered}{body!r}")


def _chunks(lines: Any) -> bytes:
    body = b""
    while size := int(lines.readline(), 16):
        body += lines.read(size)
        lines.readline()
    lines.readline()
    return body
