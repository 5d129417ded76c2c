"""The console of a proxy that serves: a stream is seen while it runs, not settled yet, and then explained."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse, IncompleteRead
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


def cut_body(response: HTTPResponse) -> bytes:
    """What came of a body without a proper end."""
    with pytest.raises(IncompleteRead) as cut:
        response.read()
    return cut.value.partial


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_operator_stops_a_stream_and_what_was_delivered_is_billed(
    tokenweir: Callable[..., Tokenweir], provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Whichever process of the port has it, and also before its first event. An answer that is no stream goes on."""
    monkeypatch.setenv("ADMIN", SECRET)
    one = tokenweir(admin={"port": 0, "secret": "${ADMIN}"}, options=("--workers", str(workers)))
    key = one.key()
    provider.script("long", Shape("openai", tokens=2_000, pace_ms=10))
    provider.script("late", Shape("openai", tokens=2_000, pace_ms=10, first_ms=1_500))
    provider.script("whole", Shape("openai", tokens=5, first_ms=2_500))
    asked = {"stream": True, "messages": [{"role": "user", "content": "x"}]}
    names = ["long", "late"] * workers

    def stop(exchange_id: str, secret: str = SECRET) -> tuple[int, Any]:
        response = opened(one.console_url, f"/v1/exchanges/{exchange_id}/stop", secret, {})
        return response.status, json.loads(response.read())

    with ThreadPoolExecutor() as pool:
        streams = [
            pool.submit(opened, one.url, "/v1/chat/completions", key, {**asked, "model": name}) for name in names
        ]
        whole = pool.submit(opened, one.url, "/v1/chat/completions", key, {**asked, "model": "whole", "stream": False})
        deadline = time.monotonic() + 10
        while len(running := answer(one.console_url, "/v1/live", SECRET)[1]["data"]) <= len(names):
            assert time.monotonic() < deadline, running
        assert stop(running[0]["id"], key)[0] == 403
        for exchange in running:
            status, body = stop(exchange["id"])
            if exchange["model"] == "whole":
                assert (status, body["error"]["code"]) == (409, "exchange_not_stoppable")
            else:
                assert (status, body["status"]) == (200, "stopped")
        assert stop(next(one["id"] for one in running if one["model"] == "late"))[0] == 200, "it waits for an event"
        bodies = [cut_body(stream.result()) for stream in streams]
        assert json.loads(whole.result().read())["usage"]["completion_tokens"] == 5
    for body in bodies:
        assert b"stopped_by_operator" in body
        assert b"[DONE]" not in body
    entries = one.entries(len(running))
    for entry in entries:
        if entry["model"] != "whole":
            assert (entry["outcome"], entry["details"]["failed"]) == ("budget_cut", "stopped_by_operator")
            assert entry["usage_source"] == "estimated"
            assert 0 < entry["completion_tokens"] < 1_000
            assert float(entry["charge_usd"]) > 0
    assert stop(running[0]["id"])[1]["error"]["code"] == "exchange_not_running"
    _, audit = answer(one.console_url, "/v1/audit?action=exchange.stop", SECRET)
    assert sorted(act["result"] for act in audit["data"]) == ["done"] * (len(names) + 1) + ["refused"] * 2
    assert one.stop() == 0
