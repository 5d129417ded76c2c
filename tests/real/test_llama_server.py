"""A real server answers through the proxy in three languages: the ledger holds what the answer says was used.

Law: what arrives is what the server says in its own language, whole and readable; nobody scripted it.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.real import llama
from tests.support import sse
from tests.support.net import chat_request, connect, free_port
from tests.support.tokenweir import Tokenweir, provider_section

pytestmark = pytest.mark.real

# Loading a model of some hundred kilobytes takes no second; a loaded machine may.
START_S_MAX, ANSWER_S_MAX = 60.0, 60.0
LIMIT = 24
SAID = [{"role": "user", "content": "How much water goes over the weir?"}]
# Where each language is asked, and with what.
LANGUAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {"messages": SAID, "max_tokens": LIMIT, "stream_options": {"include_usage": True}},
    ),
    "messages": ("/v1/messages", {"messages": SAID, "max_tokens": LIMIT}),
    "responses": ("/v1/responses", {"input": SAID[0]["content"], "max_output_tokens": LIMIT}),
}


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """llama-server with the random model, on a free port."""
    folder, port = tmp_path_factory.mktemp("llama"), free_port()
    (folder / "weir.gguf").write_bytes(llama.model())
    command = [str(one) for one in llama.arguments(port, folder / "weir.gguf")]
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _until_ready(f"http://127.0.0.1:{port}/health", child, folder / "log")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        child.terminate()
        child.wait(START_S_MAX)


def _until_ready(url: str, child: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S_MAX
    while True:
        assert child.poll() is None, log.read_text(errors="replace")[-3000:]
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
        try:
            with urlopen(url, timeout=5):
                return
        except (URLError, ConnectionError):
            time.sleep(0.05)


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory, upstream: str) -> Iterator[tuple[Tokenweir, str]]:
    section = provider_section(upstream, dialects=["openai", "anthropic"])
    with_llama = Tokenweir(tmp_path_factory.mktemp("proxy"), providers={"llama": section})
    try:
        with_llama.start()
        yield with_llama, with_llama.key()
    finally:
        with_llama.close()


def used(language: str, body: bytes, *, streamed: bool) -> tuple[int, int]:
    told = sse.chunks(body) if streamed else [json.loads(body)]
    usage: dict[str, Any] = {}
    for one in told:
        inner = one.get("message") or one.get("response") or one
        usage |= inner.get("usage") or one.get("usage") or {}
    if language == "chat":
        return usage["prompt_tokens"], usage["completion_tokens"]
    return usage["input_tokens"] + usage.get("cache_read_input_tokens", 0), usage["output_tokens"]


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("language", LANGUAGES)
async def test_it_answers_in_its_own_language(proxy: tuple[Tokenweir, str], language: str, streamed: bool) -> None:
    tokenweir, key = proxy
    path, asked = LANGUAGES[language]
    document = {"model": f"{language}-{streamed}", "stream": streamed} | asked
    if not streamed:
        document.pop("stream_options", None)
    async with await connect(tokenweir.url) as client:
        await client.send(chat_request(document, path=path, key=key))
        response = await client.read(ANSWER_S_MAX)
    assert (response.status, response.ended) == (200, "complete"), response.body
    entries = tokenweir.until(lambda entries: any(one["model"] == document["model"] for one in entries))
    (entry,) = [one for one in entries if one["model"] == document["model"]]
    assert (entry["outcome"], entry["usage_source"], entry["endpoint"]) == ("served", "reported", path)
    assert (entry["prompt_tokens"], entry["completion_tokens"]) == used(language, response.body, streamed=streamed)
    assert entry["completion_tokens"] == LIMIT
    assert entry["bytes"] == len(response.body)
