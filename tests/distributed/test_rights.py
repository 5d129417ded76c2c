"""A user of Redis with exactly the rights of the documentation runs the whole product; with one less, nothing is ready,
and the right is named."""

from __future__ import annotations

import asyncio
import re
from contextlib import closing
from functools import partial
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from proxy.runtime.machine import queue
from proxy.storage.redis_rights import access_list, commands
from tests.budgets.deployed.limited import Limited, deployment
from tests.support import sse
from tests.support.by_hand import asking, get
from tests.support.net import ask, chat_request, free_port
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Listening, Tokenweir
from tests.support.valkey import Valkey
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.thorough]

LEASE_S, PATIENCE_S = 2.0, 30.0
# Those of clean-ups that come once a minute, of losses and of refusals.
RARE = {"del", "xclaim", "xgroup|delconsumer", "xinfo|consumers", "xinfo|groups", "hsetnx", "expire", "exists", "time"}


@pytest.fixture
def server(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> Valkey:
    monkeypatch.setattr(queue, "RIGHTS_S", 0.1)
    valkey.ask(*access_list("tw").replace(">PASSWORD", ">canary-1").split())
    valkey.ask("ACL", "LOG", "RESET")
    return valkey


def machine(folder: Path, provider: ScriptedProvider, ledger_url: str, server: Valkey) -> Tokenweir:
    listen = {"host": "127.0.0.1", "port": free_port()}
    return deployment(
        folder, provider, ledger_url=ledger_url, queue_url=server.url.replace("//", "//tw:canary-1@"), lease_s=LEASE_S,
        listen=listen, resume={"address": f"http://127.0.0.1:{listen['port']}"}, shutdown_grace_s=1.0,
    )  # fmt: skip


def probed(url: str) -> str:
    """The status of `/readyz`, and its text."""
    try:
        with urlopen(f"{url}/readyz", timeout=5) as answer:
            return f"200 {answer.read().decode()}"
    except HTTPError as refused:
        return f"503 {refused.read().decode()}"
    except OSError:
        return ""


async def until_probed(url: str, says: str) -> None:
    async def is_so() -> bool:
        return says in await asyncio.to_thread(probed, url)

    await until(is_so, within_s=PATIENCE_S, poll_s=0.05)


async def resumed(here: Tokenweir, there: Tokenweir, key: str, model: str) -> bytes:
    """A stream that broke off at one machine, and was taken up at the other."""
    client = await asking(here.url, chat_request(ask(model), key=key))
    await client.head()
    await client.take(300)
    client.leave()
    path = f"/v1/exchanges/{client.headers['x-tokenweir-exchange']}/stream?after=0"
    async with asyncio.timeout(PATIENCE_S):
        while await (again := await asking(there.url, get(path, key))).head() == 404:
            again.leave()
            await asyncio.sleep(0.2)
    rest = await again.rest()
    again.leave()
    return rest


async def test_the_rights_of_the_documentation_are_enough(
    tmp_path: Path, provider: ScriptedProvider, ledger_url: str, server: Valkey
) -> None:
    make = partial(machine, provider=provider, ledger_url=ledger_url, server=server)
    here, there = Limited(make(tmp_path / "here"), provider), Limited(make(tmp_path / "there"), provider)
    worker = here.tokenweir.worker()
    with closing(here.tokenweir), closing(there.tokenweir), closing(worker):
        await asyncio.gather(*(asyncio.to_thread(one.start) for one in (here.tokenweir, there.tokenweir, worker)))
        key_id, key = here.key("--budget", "0.01", "--budget-window", "none", "--rpm", "100", "--parallel", "9")
        once = {"Idempotency-Key": "t-1"}
        model = here.model()
        answers = [await one.post(key, model, stream=True, headers=once) for one in (here, there)]
        assert [answer.status for answer in answers] == [200, 409]
        assert sse.done(await resumed(here.tokenweir, there.tokenweir, key, here.model(60, pace_ms=20)))
        assert [one.status for one in await here.many(key, here.model(), 5)] == [200] * 5
        here.entries(key_id, 7)
        assert (await there.at_rest(key_id)).spent == 660_000
        await until(lambda: _has_leases(server, expected=False), within_s=PATIENCE_S)  # else it is one that has ended
        cut = await asking(there.url, chat_request(ask(there.model(4_000, pace_ms=50), max_tokens=4_000), key=key))
        await cut.head()
        await until(lambda: _has_leases(server), within_s=PATIENCE_S)
        there.tokenweir.kill()  # a worker finds its leases, and settles
        cut.leave()
        here.entries(key_id, 8)
        assert (await here.at_rest(key_id)).spent is not None
        assert here.counters()[key_id]["running"] == 0
        here.tokenweir.command("budgets", "rebuild")
        here.tokenweir.command("reload")
        found = here.tokenweir.command("doctor", check=False).stdout
        assert "✗ queue" not in found
        assert "✓ queue" in found
    assert here.tokenweir.unreconciled() == []
    assert server.ask("ACL", "LOG") == b"*0\r\n", "nothing was refused, and nobody has suppressed it"
    called = set(re.findall(r"cmdstat_([\w|-]+):", server.ask("INFO", "commandstats").decode()))
    assert set(commands()) - called <= RARE
    assert b"canary-1" not in here.tokenweir.outputs()


async def _has_leases(server: Valkey, *, expected: bool = True) -> bool:
    """Whether a node has leases. A node's hash has one field more, always."""
    nodes = re.findall(r"\S*:leases", server.ask("KEYS", "*:leases").decode())
    return any(int(server.ask("HLEN", node)[1:]) > 1 for node in nodes) is expected


async def test_a_right_that_is_taken_away_is_named_until_it_is_back(
    tmp_path: Path, provider: ScriptedProvider, ledger_url: str, server: Valkey
) -> None:
    tokenweir = machine(tmp_path / "here", provider, ledger_url, server)
    worker = tokenweir.worker()

    async def both(says: str) -> None:
        await asyncio.gather(*(until_probed(one.url, says) for one in (tokenweir, worker)))

    with closing(tokenweir), closing(worker):
        await asyncio.gather(*(asyncio.to_thread(one.start) for one in (tokenweir, worker)))
        limited = Limited(tokenweir, provider)
        _, key = limited.key("--budget", "1")
        await limited.until_served(key, limited.model())
        for right, gone, back in (
            ("+evalsha", ("-evalsha",), ("+evalsha",)),
            ("~{tokenweir:*", ("resetkeys", "~tokenweir:*", "~{tokenweir}:*"), ("~{tokenweir:*",)),
            ("+client|setname", ("-client|setname",), ("+client|setname",)),
        ):
            server.ask("ACL", "SETUSER", "tw", *gone)
            await both(f"the right to {right}: ACL SETUSER tw")
            for one in (tokenweir, worker):
                assert f"the right to {right}: ACL SETUSER tw" in one.log.read_text()
            assert f"✗ queue               the Redis at 127.0.0.1:{server.port} does not give" in _doctor(tokenweir)
            assert right in _doctor(tokenweir)
            server.ask("ACL", "SETUSER", "tw", *back)
            await both("200 ready")
        await limited.until_served(key, limited.model())
        server.ask("ACL", "DELUSER", "tw")
        await both("refuses the user 'tw'")
        assert "canary-1" not in tokenweir.log.read_text() + worker.log.read_text() + _doctor(tokenweir)


def _doctor(tokenweir: Tokenweir) -> str:
    return tokenweir.found("doctor")[1]


async def test_a_start_without_a_right_waits_and_names_it(
    tmp_path: Path, provider: ScriptedProvider, ledger_url: str, server: Valkey
) -> None:
    server.ask("ACL", "SETUSER", "tw", "-hget", "-xadd")
    tokenweir = machine(tmp_path / "here", provider, ledger_url, server)
    worker = tokenweir.worker()
    worker._arguments = (*worker._arguments, "--port", str(free_port()))
    ports = int(re.findall(r"127.0.0.1:(\d+)", tokenweir.config.read_text())[-1]), int(worker._arguments[-1])
    with closing(tokenweir), closing(worker):
        for one, port in zip((tokenweir, worker), ports, strict=True):
            one.launch()
            await until_probed(f"http://127.0.0.1:{port}", "503 the Redis at ")
            await until_probed(f"http://127.0.0.1:{port}", "the right to +hget +xadd: ACL SETUSER tw +hget +xadd\n")
        server.ask("ACL", "SETUSER", "tw", "+hget", "+xadd")
        for port in ports:
            await until_probed(f"http://127.0.0.1:{port}", "200 ready")
        assert _waited(tokenweir)
        assert _waited(worker)


def _waited(one: Listening) -> bool:
    return "ACL SETUSER tw +hget +xadd: waiting for the queue's Redis" in one.log.read_text()
