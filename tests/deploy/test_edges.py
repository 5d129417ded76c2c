"""The shipped edges in front of the real proxy: TLS, HTTP/2, each event at once, and a client that leaves is noticed.

The provider is a gate that a test opens, so that nothing here depends on how fast this machine is.
"""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.crash.stage import quick_key
from tests.deploy.edges import Edge, program
from tests.deploy.gate import FIRST, Gate
from tests.support.tokenweir import Tokenweir, provider_section

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


@pytest.fixture
def gate(one_gate: Gate) -> Gate:
    """Shut, and nobody has left it."""
    one_gate.open.clear()
    one_gate.left = 0
    return one_gate


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, one_gate: Gate) -> Iterator[tuple[Tokenweir, str]]:
    """The real proxy in front of the gate, and a key."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # children inherit it
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    made = Tokenweir(tmp_path_factory.mktemp("edges"), providers={"gate": provider_section(one_gate.base_url)})
    key = quick_key(made)
    yield made.start(), key
    made.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("kind", ["nginx", "haproxy", "caddy"])
async def test_each_event_comes_at_once_and_who_leaves_is_noticed(
    kind: str, tmp_path: Path, gate: Gate, served: tuple[Tokenweir, str]
) -> None:
    curl = program("curl")
    program(kind)
    tokenweir, key = served
    edge = Edge(kind, tmp_path / "edge", tokenweir.port)
    try:
        common = [curl, "-sSN", "--http2", "--cacert", str(edge.certificate.chain), "--max-time", str(PATIENCE_S)]
        ask = [*common, "-H", f"Authorization: Bearer {key}", "-d", _body(kind), f"{edge.url}/v1/chat/completions"]

        leaving = await _run(*ask)
        assert await _event(leaving) == FIRST
        leaving.kill()
        await gate.until_left(1, PATIENCE_S)
        await leaving.communicate()

        staying = await _run(*ask, "-w", "%{http_version} %{http_code}")
        assert await _event(staying) == FIRST, "the gate is shut: the last event has not been sent"
        gate.open.set()
        rest, errors = await staying.communicate()
        assert rest.endswith(b"data: [DONE]\n\n2 200"), (rest, errors)

        hidden = await _run(*common, "-o", "/dev/null", "-w", "%{http_code}", f"{edge.url}/metrics")
        assert (await hidden.communicate())[0] == b"404"
        entries = tokenweir.until(lambda entries: len(_of(kind, entries)) >= 2)
        assert sorted(entry["outcome"] for entry in _of(kind, entries)) == ["client_left", "served"]
    finally:
        edge.close()


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


async def _event(client: asyncio.subprocess.Process) -> bytes:
    """The next event, as it came."""
    assert client.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        return await client.stdout.readuntil(b"\n\n")
