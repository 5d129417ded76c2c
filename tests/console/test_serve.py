"""The console of a proxy that serves: a stream is seen while it runs, not settled yet, and then explained."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.client import HTTPResponse
from typing import Any

import pytest

from proxy.demo.script import Shape
from tests.console.serving import SECRET, answer, opened
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir


def event(watched: HTTPResponse) -> Any:
    assert watched.readline() == b"event: live\n"
    line = watched.readline()
    assert watched.readline() == b"\n"
    return json.loads(line.removeprefix(b"data: "))


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_stream_is_seen_while_it_runs_and_explained_when_it_has_ended(
    tokenweir: Callable[..., Tokenweir], provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Whichever process of the port has it."""
    monkeypatch.setenv("ADMIN", SECRET)
    admin = {"port": 0, "secret": "${ADMIN}"}
    one = tokenweir(admin=admin, options=("--workers", str(workers)))
    key = one.key()
    provider.script("long", Shape("openai", tokens=1_000, pace_ms=10))
    provider.script("brief", Shape("openai", tokens=5))
    asked = {"model": "long", "stream": True, "messages": [{"role": "user", "content": "a word that is nobody's"}]}
    streams = [opened(one.url, "/v1/chat/completions", key, asked) for _ in range(2 * workers)]
    ids = {stream.headers["x-tokenweir-exchange"] for stream in streams}
    watched = opened(one.console_url, "/v1/live", SECRET, Accept="text/event-stream")
    first, second = event(watched), event(watched)
    assert {stream["id"] for stream in second["data"]} == ids
    assert (first["processes"], second["running"]) == (workers, 2 * workers)
    assert second["completion_tokens"] > first["completion_tokens"] > 0
    assert float(second["charge_usd"]) > float(first["charge_usd"]) > 0
    assert "nobody's" not in str(second)
    for exchange_id in ids:
        for url, who in ((one.url, key), (one.console_url, SECRET)):
            status, shown = answer(url, f"/v1/exchanges/{exchange_id}", who)
            assert (status, shown["status"]) == (202, "unsettled")
    assert answer(one.url, f"/v1/exchanges/{min(ids)}", one.key("other"))[0] == 404
    assert answer(one.url, f"/v1/exchanges/{min(ids)}", SECRET)[0] == 401, "an operator's secret is for the console"
    for stream in streams:
        stream.close()
    watched.close()
    entries = {entry["exchange_id"]: entry for entry in one.entries(2 * workers)}
    for exchange_id in ids:
        status, shown = answer(one.url, f"/v1/exchanges/{exchange_id}", key)
        assert (status, shown["charge_usd"]) == (200, entries[exchange_id]["charge_usd"])
        assert shown["usage"]["evidence"]
        assert shown["usage"]["estimator"]
    assert one.stop() == 0
