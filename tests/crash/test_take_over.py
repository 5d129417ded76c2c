"""`serve --take-over`: a new process takes the place of the running one; no request is refused, no stream is cut, and
each is billed once, whoever dies on the way."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from contextlib import AsyncExitStack, closing
from typing import Any

import pytest
import yaml

from proxy.runtime.machine.configuration_file import STATUS_FILE
from proxy.runtime.proxy import handover
from tests.crash.generations import SHORT, SLOW, UNREACHABLE, Generation, Start, Traffic, ended, taken_over
from tests.crash.stage import PATIENCE_S, Stage, quick_key, until
from tests.support import sse
from tests.support.net import ask, chat_request, connect
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir


def status_pid(running: Tokenweir) -> int:
    return int(json.loads((running.folder / "data" / STATUS_FILE).read_text())["pid"])


@pytest.mark.thorough
async def test_no_request_is_refused_and_no_stream_is_cut(tokenweir: Start, provider: ScriptedProvider) -> None:
    first = tokenweir(admin={"port": 0, "secret": secrets.token_hex(32)}, allow_literal_secrets=True)
    key, slow, short = quick_key(first), provider.script("slow", SLOW), provider.script("short", SHORT)
    traffic, generations = Traffic(first, key, short), [first]
    async with Stage(first, key) as stage, asyncio.TaskGroup() as clients:
        streams = []
        for work in (traffic.on_new_connections, traffic.on_kept_connections):
            for _ in range(3):
                clients.create_task(work())
        for _ in range(3):
            streams += [await stage.begin(slow) for _ in range(4)]
            seen = traffic.answered
            await until(lambda seen=seen: traffic.answered > seen + 20)  # type: ignore[misc]
            generations.append(await taken_over(generations[-1]))
        seen = traffic.answered
        await until(lambda: traffic.answered > seen + 20)
        traffic.stopping = True
        for client, response in streams:
            assert sse.done((await client.read_body(response, timeout_s=PATIENCE_S)).body)
    last = generations[-1]
    for one in generations[:-1]:
        await ended(one)
    assert last.child is not None
    assert status_pid(last) == last.child.pid
    total = traffic.answered + len(streams)
    entries = await asyncio.to_thread(last.entries, total)
    assert len({one["exchange_id"] for one in entries}) == len(entries) == total
    assert {one["outcome"] for one in entries} == {"served"}
    assert last.unreconciled() == []
    assert last.stop() == 0


@pytest.mark.thorough
async def test_the_console_of_the_new_one_alone_answers_while_the_old_one_drains(
    tokenweir: Start, provider: ScriptedProvider
) -> None:
    """Its operators and its address apply, however long the streams of the old one run."""
    console = {"port": 0, "secret": secrets.token_hex(32)}
    first = tokenweir(admin=console, allow_literal_secrets=True)
    key, slow = quick_key(first), provider.script("slow", SLOW)
    settings = yaml.safe_load(first.config.read_text())
    async with Stage(first, key) as stage:
        await stage.begin(slow)
        first.config.write_text(yaml.safe_dump({**settings, "admin": {**console, "secret": secrets.token_hex(32)}}))
        second = await taken_over(first)
        for _ in range(20):
            assert await console_status(second.console_url, console["secret"]) == 401
        await stage.begin(slow)
        first.config.write_text(yaml.safe_dump({**settings, "admin": {"port": 0}}))
        third = Generation(second)
        await asyncio.to_thread(third.start)
        with pytest.raises(ConnectionRefusedError):
            await connect(second.console_url)
    for one in (first, second):
        one.signal(signal.SIGTERM)
        await ended(one)
    assert third.stop() == 0


async def console_status(url: str, secret: Any) -> int:
    async with await connect(url) as client:
        await client.send(f"GET /v1/me HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n\r\n".encode())
        return (await client.read(PATIENCE_S)).status


@pytest.mark.thorough
async def test_monitors_see_one_proxy_that_is_ready(tokenweir: Start) -> None:
    first = tokenweir()
    async with await connect(first.url) as monitor:
        for expected in (None, "close"):
            await monitor.send(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = await monitor.read(PATIENCE_S)
            assert (answer.status, answer.header("connection")) == (200, expected)
            if expected is None:
                second = await taken_over(first)
    await ended(first)
    assert second.stop() == 0


@pytest.mark.thorough
async def test_who_waits_before_it_stops_is_replaced(tokenweir: Start, provider: ScriptedProvider) -> None:
    """After SIGTERM, in its `drain_delay_s`: its open connections are answered, and it does not wait longer."""
    first = tokenweir(drain_delay_s=60)
    key, short = quick_key(first), provider.script("short", SHORT)
    first.config.write_text(yaml.safe_dump({**yaml.safe_load(first.config.read_text()), "drain_delay_s": 0}))
    async with await connect(first.url) as client:
        for turn in range(2):
            await client.send(chat_request(ask(short), key=key))
            assert (await client.read(PATIENCE_S)).status == 200
            if turn == 0:
                first.signal(signal.SIGTERM)
                second = await taken_over(first)
    await ended(first)
    assert second.stop() == 0


async def test_who_dies_before_its_answer_is_taken_for_serving(tokenweir: Start) -> None:
    first = tokenweir()
    found = handover._predecessor(first.folder / "data")
    assert found is not None
    for one in found.listeners["listen"]:
        assert not one.get_inheritable()
        one.close()
    found._connected.sendall(b"serves")
    found._connected.close()
    await ended(first)
    assert "failed" not in first.log.read_text()


@pytest.mark.thorough
async def test_who_dies_before_it_serves_changes_nothing(tokenweir: Start, provider: ScriptedProvider) -> None:
    first = tokenweir()
    key, short = quick_key(first), provider.script("short", SHORT)
    right = first.config.read_text()
    first.config.write_text(yaml.safe_dump({**yaml.safe_load(right), **UNREACHABLE}))
    waits = Generation(first)
    waits.launch()  # it has the sockets, and waits for Postgres
    await until(lambda: "waiting" in first.log.read_text())
    async with Stage(first, key) as stage:
        assert (await stage.whole(short)).status == 200
        waits.kill()
        first.config.write_text(right)
        assert (await stage.whole(short)).status == 200
        second = await taken_over(first)
        assert (await stage.whole(short)).status == 200
    await ended(first)
    assert len(second.entries(3)) == 3
    assert second.stop() == 0


async def test_the_new_one_settles_what_the_old_one_leaves(tokenweir: Start, provider: ScriptedProvider) -> None:
    """A kill while it drains: its exchanges are recovered from its journal, each once."""
    first = tokenweir()
    key, slow = quick_key(first), provider.script("slow", SLOW)
    async with Stage(first, key) as stage, AsyncExitStack():
        for _ in range(4):
            await stage.begin(slow)
        second = await taken_over(first)
        first.kill()
        entries = await asyncio.to_thread(second.entries, 4)
    assert {one["outcome"] for one in entries} == {"crashed"}
    assert len(entries) == 4
    assert second.unreconciled() == []
    assert second.stop() == 0


@pytest.mark.thorough
async def test_without_the_option_a_second_process_is_refused(tokenweir: Start) -> None:
    first = tokenweir()
    second = await taken_over(first)
    await ended(first)
    third = Generation(second)
    third._arguments = third._arguments[:3]
    # "another" while the second one settles what the first has left
    with closing(second), pytest.raises(AssertionError, match=r"is used by (another )?process"):
        third.start()
    third._wait()
    assert second.stop() == 0
    alone = Generation(second)
    alone.start()  # nobody is there to take over from
    assert alone.stop() == 0


@pytest.mark.io
def test_a_host_without_an_address_is_the_listeners_own_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as here:
        port = here.getsockname()[1]
        for hosts, wanted, same in (
            (["127.0.0.1"], port, True), (["127.0.0.1"], 0, True), (["127.0.0.1"], port + 1, False),
            (["127.0.0.1", "::1"], port, False), (["no.such.host.invalid"], port, False),
        ):  # fmt: skip
            assert handover._is_at([here], hosts, wanted) is same, hosts


async def test_other_users_get_no_listener(tokenweir: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tokenweir()
    data = first.folder / "data"
    monkeypatch.setattr(os, "getuid", lambda: 4_711)
    with pytest.raises(handover.HandoverError, match="belongs to another user"):
        handover._predecessor(data)
    monkeypatch.undo()
    found = handover._predecessor(data)
    assert found is not None
    assert found.pid == status_pid(first)
    for one in found.listeners["listen"]:
        one.close()
    found._connected.close()
    assert first.stop() == 0


async def test_who_dies_while_it_hands_over_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    here, there = socket.socketpair()
    there.close()
    await handover.Predecessor(here, 4_711, {}).leave()
    assert "process 4711 does not answer any more" in caplog.text


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [1, 2])
def test_systemd_keeps_the_socket_open(tokenweir: Start, provider: ScriptedProvider, workers: int) -> None:
    """A connection that comes while no process runs is answered by the next one."""
    first = tokenweir()
    key, short = quick_key(first), provider.script("short", SHORT)
    assert first.stop() == 0
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(chat_request(ask(short), key=key))
            for turn in range(2):
                child = _activated(first, listening, workers)
                try:
                    assert child.stdout is not None
                    assert any(f"listening on http://127.0.0.1:{port}" in line for line in child.stdout)
                    if turn == 0:
                        client.settimeout(PATIENCE_S)
                        assert client.recv(64).startswith(b"HTTP/1.1 200")
                finally:
                    child.send_signal(signal.SIGTERM)
                    assert child.stdout is not None
                    child.stdout.read()
                    assert child.wait(PATIENCE_S) == 0
                    child.stdout.close()


_AS_SYSTEMD = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


def _activated(first: Tokenweir, listening: socket.socket, workers: int) -> subprocess.Popen[str]:
    """A process that has the socket as systemd passes it: file descriptor 3."""
    command = [sys.executable, "-c", _AS_SYSTEMD, str(listening.fileno()), "-m", "proxy", *first._arguments[:3]]
    command += ["--workers", str(workers)]
    return subprocess.Popen(
        command, cwd=first.folder, env=first.environment, stdout=subprocess.PIPE, text=True,
        pass_fds=[listening.fileno()],
    )  # fmt: skip
