"""Recorded answers replayed through a running proxy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from proxy.demo.script import AS_SENT, Cut, Script, Send
from tests.gateway.deployment import Deployment
from tests.gateway.dialects.languages import ASKED as CHAT_ASKED
from tests.gateway.dialects.languages import MESSAGES, RESPONSES
from tests.gateway.streams import COUNTS, inside_utf8
from tests.metering.corpus.corpus import FITTED
from tests.metering.corpus.dialects import exception, exception_of_gemini, spoken
from tests.metering.corpus.further import counting_headers
from tests.metering.dialects.gemini import ASKED as GEMINI_ASKED
from tests.support import sse
from tests.support.net import RawClient, chat_request

# Clients at once: enough to keep three processes busy, few enough that none waits long.
AT_ONCE = 50

# Bodies up to this are also replayed with every byte a chunk of its own; up to the second, a write of its own too.
BYTE_CHUNKS_MAX, BYTE_WRITES_MAX = 20_000, 1_000

# A record's own content type, where the recorder kept it.
PLAIN, STREAM = "application/json", "text/event-stream"

# Languages beside chat: where they are asked, and what a request of them needs.
ASKED = {
    "anthropic.messages": (MESSAGES.path, MESSAGES.asked),
    "anthropic.count_tokens": (MESSAGES.path + "/count_tokens", MESSAGES.asked),
    "openai.responses": (RESPONSES.path, RESPONSES.asked),
    "mistral.chat": ("/v1/chat/completions", CHAT_ASKED),
    "mistral.fim": ("/v1/fim/completions", {"prompt": "the water is "}),
    "cohere.chat": ("/v2/chat", CHAT_ASKED),
    "ollama.chat": ("/api/chat", CHAT_ASKED),
    "ollama.generate": ("/api/generate", {"prompt": "the water is "}),
    "google.generate": ("/v1beta/models/{model}:{method}", GEMINI_ASKED),
}


@dataclass(frozen=True)
class Replay:
    """One record at one chunking."""

    record: dict[str, Any]
    how: str
    asked: bool
    """the client asks for usage"""

    @cached_property
    def body(self) -> bytes:
        return self.record["body"].encode()  # type: ignore[no-any-return]

    @property
    def dialect(self) -> str:
        return self.record["dialect"]  # type: ignore[no-any-return]

    def request(self, deployment: Deployment, model: str) -> bytes:
        """What a client sends for it."""
        if self.dialect not in ASKED:
            usage = True if self.asked and self.record["streamed"] else None
            return deployment.request(model, stream=self.record["streamed"], usage=usage)
        path, asked = ASKED[self.dialect]
        document = asked | {"model": model, "stream": self.record["streamed"]}
        method = "streamGenerateContent" if self.record["streamed"] else "generateContent"
        return chat_request(document, path=path.format(model=model, method=method), key=deployment.key)

    @property
    def replaced(self) -> bool:
        return self.record["status"] == 401

    def events(self) -> list[bytes]:
        """What the body is made of: whole events, each as it came."""
        if self.in_lines:
            return [line + b"\n" for line in self.body.split(b"\n")[:-1]]
        return [event.wire for event in sse.events(self.body)]

    @property
    def in_lines(self) -> bool:
        return self.dialect.startswith("ollama.")

    @property
    def expected_events(self) -> int:
        """As many events that say something must the client get."""
        if self.body.startswith(b"["):
            return len(json.loads(self.body))
        return len(self.events()) if self.in_lines else len(sse.data_events(self.expected))

    def script(self) -> Script:
        """The recorded answer, parted as `how` says."""
        chunking, wire = _cuts(self.how, self.body)
        headers = self.record["response_headers"]
        kind = headers.get("content-type") or (STREAM if self.record["streamed"] else PLAIN)
        chunks = self.events() if self.how == "per event" else [self.body]
        rest = self.body[sum(map(len, chunks)) :]
        return Script(
            steps=tuple(map(Send, (*chunks, rest) if rest else chunks)),
            status=self.record["status"],
            headers=(("Content-Type", kind), *counting_headers(self.record).items()),
            framing="length" if self.how == "whole, length" else "chunked",
            chunking=chunking,
            wire=wire,
            wire_pause_ms=None if self.how == "whole" else 0,
        )

    @cached_property
    def expected(self) -> bytes:
        """What the client must get."""
        strips = self.record["streamed"] and not self.asked and self.record["status"] == 200
        strips = strips and self.dialect not in ASKED
        return sse.without_usage_event(self.body) if strips else self.body


def _cuts(how: str, body: bytes) -> tuple[Cut, Cut]:
    """How the body is parted into chunks, and the wire into writes."""
    seed = len(body)
    match how:
        case "per byte":
            return Cut(size=1), AS_SENT if len(body) <= BYTE_WRITES_MAX else Cut(size=4096)
        case "random":
            return Cut(seed=seed, size=max(64, len(body) // 20)), AS_SENT
        case "inside characters":
            # All of them in a short body, some of them in a long one.
            at = inside_utf8(body)
            return Cut(at=at[:: 1 + len(at) // 40]), AS_SENT
        case "per event":
            return AS_SENT, Cut(size=16_384) if len(body) > 100_000 else AS_SENT
        case _:
            return Cut(whole=True), Cut(whole=True)


def replays(records: list[dict[str, Any]], *, byte_chunks_max: int = BYTE_CHUNKS_MAX) -> Iterator[Replay]:
    """Every record at every chunking that applies to it; each chunking both with usage asked for and without."""
    for number, record in enumerate(records):
        body = record["body"].encode()
        ways = ["whole", "whole, length", "random"]
        if record["streamed"]:
            ways.append("per event")
        if len(body) <= byte_chunks_max:
            ways.append("per byte")
        if inside_utf8(body):
            ways.append("inside characters")
        for position, how in enumerate(ways):
            yield Replay(record, how, asked=(number + position) % 2 == 0)


def records_of(corpus: Path, *dialects: str) -> list[dict[str, Any]]:
    lines = (corpus / "open.jsonl").read_bytes().split(b"\n")
    names = [f'"{dialect}"'.encode() for dialect in dialects]
    records = [json.loads(line) for line in lines if any(name in line for name in names)]
    return [one for one in records if one["dialect"] in dialects and spoken(one) and not goes_on(one)]


def goes_on(record: dict[str, Any]) -> bool:
    """What its provider still makes in the background has no entry yet: see `test_background.py`."""
    return not record["streamed"] and '"status": "queued"' in record["body"]


async def play(deployment: Deployment, replay: Replay, model: str, client: RawClient) -> None:
    """Ask for one, and compare what arrives."""
    await client.send(replay.request(deployment, model))
    response = await client.read(60)
    where = (replay.record["id"], replay.how, replay.asked)
    assert response.ended == "complete", where
    if replay.replaced:
        assert (response.status, b"the proxy's credentials" in response.body) == (502, True), where
        return
    assert response.status == replay.record["status"], where
    assert response.body == replay.expected, where


def check(replay: Replay, entry: dict[str, Any]) -> None:
    """The entry says what the record's truth says."""
    where = (replay.record["id"], replay.how, replay.asked, entry)
    truth = replay.record["truth"]
    if replay.record["status"] >= 400:
        assert (entry["outcome"], entry["usage_source"]) in {
            ("refused_upstream", "none"),
            ("upstream_failed", "none"),
        }, where
        assert entry["charge_usd"] == "0", where
        return
    if not replay.replaced:
        assert entry["bytes"] == len(replay.expected), where
    if replay.record["streamed"]:
        assert entry["events"] == replay.expected_events, where
    if truth is None:
        assert (entry["usage_source"] == "reported") is (replay.dialect == "anthropic.count_tokens"), where
        assert entry["charge_usd"] == "0" or entry["usage_source"] == "estimated", where
        return
    if exception(replay.record) is not None:
        assert entry["usage_source"] == "reported", where
        return
    if (why := exception_of_gemini(replay.record)) is not None:
        tools = truth["tool_use_prompt_tokens"] or 0
        assert entry["prompt_tokens"] == truth["prompt_tokens"] + tools, where
        assert entry["usage_source"] == ("reported" if why == "tools" else "estimated"), where
        return
    assert entry["details"]["usage"] == truth["usage_raw"], where
    both = truth["prompt_tokens"] is not None and truth["completion_tokens"] is not None
    assert entry["usage_source"] == ("reported" if both else "estimated"), where
    if replay.record["id"] in FITTED:
        truth = truth | FITTED[replay.record["id"]]
    elif "reasoning_added" in entry["details"].get("flags", ()):  # xAI's truth leaves it out, and its bill does not
        truth = truth | {"completion_tokens": truth["completion_tokens"] + truth["reasoning_tokens"]}
    for name in COUNTS:
        assert truth[name] is None or entry[name] == truth[name], where
        assert (
            entry[name] is None or truth[name] is not None or not both or name in FITTED.get(replay.record["id"], ())
            or entry[name] == truth["usage_raw"].get("cache_read_input_tokens")  # Databricks: the truth lacks this name
        ), where  # fmt: skip


async def replay_all(deployment: Deployment, todo: list[tuple[Replay, str]]) -> None:
    """Some clients at once, each on a connection of its own, one after the other."""
    waiting = iter(todo)

    async def one_client() -> None:
        async with await RawClient.connect("127.0.0.1", deployment.tokenweir.port) as client:
            for replay, model in waiting:
                await play(deployment, replay, model, client)

    await asyncio.gather(*(one_client() for _ in range(AT_ONCE)))
