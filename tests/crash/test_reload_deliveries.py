"""A reload changes sinks and alerts: nothing is lost, and nothing is sent twice. The receiver is a real server."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.message import Message
from threading import Event
from typing import Any

import pytest
from sqlalchemy import update

from proxy.billing.limits import Limits
from proxy.billing.money import Nusd
from proxy.demo.script import Shape
from proxy.ledger.schema import tables
from proxy.storage.database import opened, writing
from tests.crash.reloading import changed, reload, reloaded
from tests.crash.stage import WORKERS, Stage, probed, quick_key, until
from tests.support.http_server import answering
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import PRICE, Tokenweir

SHORT, PACED = Shape("openai", tokens=6), Shape("openai", tokens=6, pace_ms=20)
SECRETS = {"first": "hook-secret-first", "second": "hook-secret-second"}
MODELS = {"a/*": {"provider": "scripted", "price": PRICE}}


@dataclass
class Receiver:
    """Takes webhooks at any path, and checks their signatures by the secret that the path names."""

    url: str = ""
    got: list[tuple[str, str]] = field(default_factory=list)
    """path, id"""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    refusing: dict[str, int] = field(default_factory=dict)
    """path → the status of all answers there"""
    arrived: Event = field(default_factory=Event)
    """a delivery to `/held/…` has come, and is kept waiting until `go`"""
    go: Event = field(default_factory=Event)

    def answer(self, path: str, headers: Message, body: bytes) -> tuple[int, bytes]:
        key = SECRETS[path.rpartition("/")[2]].encode()
        signed = headers["X-Tokenweir-Timestamp"].encode() + b"." + body
        assert headers["X-Tokenweir-Signature"] == f"v1={hmac.new(key, signed, hashlib.sha256).hexdigest()}"
        if path in self.refusing:
            return self.refusing[path], b"{}"
        self.got.append((path, headers["X-Tokenweir-Id"]))
        self.bodies.append(json.loads(body))
        if path.startswith("/held"):
            self.arrived.set()
            self.go.wait(20)
        return 204, b""

    def ids(self, *paths: str) -> Counter[str]:
        """How often each id has come to these paths."""
        return Counter(one for path, one in self.got if path in paths)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    with answering(receiver.answer) as receiver.url:
        yield receiver
        receiver.go.set()


@pytest.fixture
def deployment(tokenweir: Callable[..., Tokenweir], receiver: Receiver) -> Callable[..., Tokenweir]:
    def made(*options: str, **settings: Any) -> Tokenweir:
        running = tokenweir(models=MODELS, start=False, options=options, **settings)
        running.environment |= {name.upper(): secret for name, secret in SECRETS.items()}
        return running.start()

    return made


def sink(receiver: Receiver, path: str) -> dict[str, str]:
    secret = "${" + path.rpartition("/")[2].upper() + "}"
    return {"kind": "webhook", "url": f"{receiver.url}{path}", "secret": secret}


def sinks(running: Tokenweir, **wanted: dict[str, str]) -> None:
    """Write these sinks to the file, and no others."""
    changed(running, lambda document: document.update(sinks=wanted))


def set_times(running: Tokenweir, **unix_s: float) -> None:
    """Set columns of all sinks: of a minute's claim, or of minutes of backoff, is not waited for."""
    with opened(running.ledger_url) as engine, writing(engine) as connection:
        connection.execute(update(tables.sinks).values(unix_s))


def entry_ids(running: Tokenweir, count: int) -> list[str]:
    return [one["entry_id"] for one in running.entries(count, timeout_s=30)]


@pytest.mark.thorough
@pytest.mark.parametrize("options", [(), ("--workers", str(WORKERS))], ids=["one", "fleet"])
async def test_under_traffic_each_entry_is_sent_once(
    deployment: Callable[..., Tokenweir], provider: ScriptedProvider, receiver: Receiver, options: tuple[str, ...]
) -> None:
    stays, moves, late = (sink(receiver, f"/{name}/first") for name in ("stays", "moves", "late"))
    running = deployment(*options, sinks={"stays": stays, "moves": moves})
    key, name, answers, over = quick_key(running), provider.script("traffic", PACED), list[int](), asyncio.Event()

    async def traffic(stage: Stage) -> None:
        while not over.is_set():
            answers.append((await stage.whole(f"a/{name}")).status)

    async def use(**wanted: dict[str, str]) -> None:
        sinks(running, **wanted)
        after = await reloaded(running)
        assert (after["error"], after["need_restart"]) == (None, [])
        served = len(answers)
        await until(lambda: len(answers) >= served + 10)

    async with Stage(running, key) as stage:
        requests = asyncio.gather(*(traffic(stage) for _ in range(2)))
        await use(stays=stays, moves=sink(receiver, "/moved/second"))
        earlier = {one["entry_id"] for one in running.read_ledger()}
        await use(stays=stays, moves=sink(receiver, "/moved/second"), late=late)
        await until(lambda: bool(receiver.ids("/moved/second") and receiver.ids("/late/first")))
        await use(stays=stays, moves=moves)
        await until(lambda: 'tokenweir_sink_lag_seconds{sink="late"}' not in probed(running, "/metrics"))
        await use(stays=stays, moves=moves, late=late)
        over.set()
        await requests
    everything = Counter(entry_ids(running, len(answers)))
    assert set(answers) == {200}
    await until(lambda: receiver.ids("/stays/first") == everything)
    await until(lambda: receiver.ids("/moves/first", "/moved/second") == everything)
    # What was settled while it was removed has come, what was settled before it was added has not.
    since = receiver.ids("/late/first")
    first = min(map(list(everything).index, since))
    await until(lambda: receiver.ids("/late/first") == Counter(list(everything)[first:]))
    assert not earlier & set(receiver.ids("/late/first"))
    assert running.stop() == 0


@pytest.mark.thorough
async def test_a_delivery_under_way_ends_before_the_next_one_begins(
    deployment: Callable[..., Tokenweir], provider: ScriptedProvider, receiver: Receiver
) -> None:
    running = deployment(sinks={"books": sink(receiver, "/held/first")})
    key, name = quick_key(running), provider.script("held", SHORT)
    async with Stage(running, key) as stage:
        await stage.whole(f"a/{name}")
        await asyncio.to_thread(receiver.arrived.wait, 20)
        sinks(running, books=sink(receiver, "/new/second"))
        assert (await reloaded(running))["error"] is None
        await stage.whole(f"a/{name}")
        ids = entry_ids(running, 2)
        assert receiver.got == [("/held/first", ids[0])]
        receiver.go.set()
        await until(lambda: len(receiver.got) == 2)
    assert receiver.got == [("/held/first", ids[0]), ("/new/second", ids[1])]


@pytest.mark.thorough
async def test_a_kill_in_the_middle_repeats_a_delivery_with_its_id(
    deployment: Callable[..., Tokenweir], provider: ScriptedProvider, receiver: Receiver
) -> None:
    running = deployment(sinks={"books": sink(receiver, "/held/first")})
    key, name = quick_key(running), provider.script("killed", SHORT)
    async with Stage(running, key) as stage:
        await stage.whole(f"a/{name}")
        await asyncio.to_thread(receiver.arrived.wait, 20)
        sinks(running, books=sink(receiver, "/new/second"), more=sink(receiver, "/more/first"))
        running.signal(signal.SIGHUP)
        await stage.whole(f"a/{name}")
        running.kill()
    receiver.go.set()
    set_times(running, claimed_until=0.0)
    running.start()
    ids = entry_ids(running, 2)
    await until(lambda: receiver.ids("/new/second") == Counter(ids))
    assert receiver.ids("/held/first") == Counter(ids[:1])
    assert receiver.ids("/more/first").keys() <= set(ids)


@pytest.mark.thorough
async def test_a_corrected_sink_is_tried_at_once(
    deployment: Callable[..., Tokenweir], provider: ScriptedProvider, receiver: Receiver
) -> None:
    """Not after the ten minutes that many failures have led to; an unchanged one waits."""
    wrong = sink(receiver, "/wrong/first")
    receiver.refusing["/wrong/first"] = 404
    running = deployment(sinks={"books": wrong})
    key, name = quick_key(running), provider.script("wrong", SHORT)
    async with Stage(running, key) as stage:
        await stage.whole(f"a/{name}")
        await until(lambda: 'tokenweir_sink_failures_total{sink="books"} 1.0' in probed(running, "/metrics"))
        set_times(running, next_at=time.time() + 600)
        sinks(running, books=sink(receiver, "/right/first"))
        code, said, _ = await asyncio.to_thread(reload, running)
        assert (code, "reloaded" in said) == (0, True)
        await until(lambda: receiver.ids("/right/first") == Counter(entry_ids(running, 1)))


@pytest.mark.thorough
async def test_the_webhook_of_alerts_is_set_moved_and_unset(
    deployment: Callable[..., Tokenweir], provider: ScriptedProvider, receiver: Receiver
) -> None:
    running = deployment()
    name = provider.script("alerts", SHORT)
    async with Stage(running, quick_key(running)) as stage:
        await stage.whole(f"a/{name}")
    (once,) = running.entries(1)
    budget = Nusd(10 * int(float(once["charge_usd"]) * 1e9))

    def alerts(**wanted: str) -> None:
        changed(running, lambda document: document.update(alerts=wanted))

    async with Stage(running, quick_key(running, Limits(budget_nusd=budget), alias="limited")) as stage:
        for count, path in ((5, "/a/first"), (3, "/b/second")):
            alerts(url=f"{receiver.url}{path}", secret="${" + path.rpartition("/")[2].upper() + "}")
            assert (await reloaded(running))["need_restart"] == []
            for _ in range(count):
                assert (await stage.whole(f"a/{name}", max_tokens=6)).status == 200
            await until(lambda path=path: receiver.ids(path).total() == 1)  # type: ignore[misc]
    assert [body["threshold"] for body in receiver.bodies] == [50, 80]
    alerts()
    assert (await reloaded(running))["need_restart"] == []
    assert running.stop() == 0


@pytest.mark.thorough
async def test_a_wrong_sink_changes_nothing(
    deployment: Callable[..., Tokenweir], provider: ScriptedProvider, receiver: Receiver
) -> None:
    books = sink(receiver, "/books/first")
    running = deployment(sinks={"books": books})
    key, name = quick_key(running), provider.script("refused", SHORT)
    sinks(running, more=sink(receiver, "/more/first"), wrong={**books, "kind": "letters"})
    assert "sinks.wrong.kind: must be" in (await reloaded(running))["error"]
    async with Stage(running, key) as stage:
        await stage.whole(f"a/{name}")
        await until(lambda: receiver.ids("/books/first") == Counter(entry_ids(running, 1)))
    assert not receiver.ids("/more/first")
