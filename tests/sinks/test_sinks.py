"""Entries reach others' servers: in the documented shapes, at least once, through failures, poison and deaths."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from threading import Event
from typing import Any
from urllib.parse import parse_qsl

import pytest
from aiohttp import web
from sqlalchemy import Engine, insert

from proxy.billing.entries import LedgerEntry
from proxy.foundation.secret import Secret
from proxy.ledger.accounts.credit import credit_entry
from proxy.ledger.schema.account_tables import api_keys
from proxy.ledger.settling.store import LedgerStore
from proxy.settings.sinks import CustomerSource
from proxy.sinks import progress as kept
from proxy.sinks import sender as sending
from proxy.sinks.kinds import SINKS, MeteredQuantity
from proxy.sinks.posting import bounded_retry_after_s
from proxy.sinks.progress import SinkStatus, dead_letters, sink_status
from proxy.sinks.sender import SinkSender
from proxy.storage.database import writing
from tests.ledger.entries import an_entry, arriving
from tests.support.clock import Clock
from tests.support.ledgers import on_both_databases
from tests.support.recorder import Recorder
from tests.support.waiting import beside, until
from tests.support.web_server import serving

pytestmark = pytest.mark.io

SECRET = Secret("sk_of_the_sink")
Answers = list[int | Callable[[], Any]]


@dataclass
class SinkRecorder(Recorder):
    refusals: list[tuple[str, str]] = field(default_factory=list)
    whys: list[tuple[str, float]] = field(default_factory=list)
    count: int = 0
    last: SinkStatus | None = None

    def sent(self, _name: str, entries: int) -> None:
        self.count += entries

    def refused(self, _name: str, entry_id: str, why: str) -> None:
        self.refusals.append((entry_id, why))

    def unsent(self, _name: str, why: str, wait_s: float) -> None:
        self.whys.append((why, wait_s))

    def status(self, _name: str, status: SinkStatus, _lag_s: float) -> None:
        self.last = status


@dataclass
class Server:
    """Stripe, Lago, OpenMeter and somebody's own: takes what is documented, keeps ids, and fails as it is told."""

    url: str = ""
    answers: Answers = field(default_factory=list)
    """what comes first"""
    got: dict[str, dict[str, Any]] = field(default_factory=dict)
    """id → event"""
    requests: int = 0
    in_pieces: bool = False
    """answers come byte by byte"""
    poison: set[str] = field(default_factory=set)
    """ids of events that are refused"""

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests += 1
        body = await request.read()
        answer = self.answers.pop(0) if self.answers else 0
        if callable(answer):
            await answer()
        elif answer:
            headers = {"Retry-After": "77"} if answer in (429, 503) else {}
            return web.Response(status=answer, headers=headers, text='{"error": {"message": "no"}}')
        kind = {"/v1/billing/meter_events": self._stripe, "/api/v1/events/batch": self._lago,
                "/api/v1/events": self._openmeter, "/hook": self._hook}[request.path]  # fmt: skip
        assert request.method == "POST"
        whole = kind(request, body)
        return await self._slowly(request, whole) if self.in_pieces else whole

    async def _slowly(self, request: web.BaseRequest, whole: web.Response) -> web.StreamResponse:
        pieces = web.StreamResponse(status=whole.status)
        await pieces.prepare(request)
        assert isinstance(whole.body, bytes)
        for byte in whole.body:
            await pieces.write(bytes([byte]))
            await asyncio.sleep(0)
        return pieces

    def _stripe(self, request: web.BaseRequest, body: bytes) -> web.Response:
        assert request.headers["Authorization"] == "Bearer sk_of_the_sink"
        assert request.headers["Content-Type"] == "application/x-www-form-urlencoded"
        form = dict(parse_qsl(body.decode(), strict_parsing=True))
        known = {f"payload[{name}]" for name in ("stripe_customer_id", "value", "token_type", "model")}
        assert form.keys() <= {"event_name", "identifier", "timestamp", *known}
        assert form["payload[stripe_customer_id]"].startswith("cus_")
        assert len(form["identifier"]) <= 100
        int(form["timestamp"]), int(form["payload[value]"])
        if form["identifier"] in self.got:
            said = f"An event already exists with identifier {form['identifier']}."
            return web.json_response({"error": {"type": "invalid_request_error", "message": said}}, status=400)
        return self._take({form["identifier"]: form})

    def _lago(self, request: web.BaseRequest, body: bytes) -> web.Response:
        assert request.headers["Authorization"] == "Bearer sk_of_the_sink"
        events = json.loads(body)["events"]
        assert 0 < len(events) <= 100
        for one in events:
            assert set(one) == {"transaction_id", "external_subscription_id", "code", "timestamp", "properties"}
            float(one["timestamp"])
        errors = {
            str(at): {"transaction_id": ["value_already_exist"]}
            for at, one in enumerate(events)
            if one["transaction_id"] in self.got
        }
        if errors:
            details = {"status": 422, "code": "validation_errors", "error_details": errors}
            return web.json_response(details, status=422)
        return self._take({one["transaction_id"]: one for one in events})

    def _openmeter(self, request: web.BaseRequest, body: bytes) -> web.Response:
        assert request.headers["Content-Type"] == "application/cloudevents-batch+json"
        events = json.loads(body)
        for one in events:
            assert {"id", "source", "specversion", "type", "subject"} <= set(one)
            assert one["specversion"] == "1.0"
            datetime.fromisoformat(one["time"])
        return self._take({one["id"]: one for one in events})

    def _hook(self, request: web.BaseRequest, body: bytes) -> web.Response:
        timestamp = request.headers["X-Tokenweir-Timestamp"]
        expected = hmac.new(b"sk_of_the_sink", f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
        assert request.headers["X-Tokenweir-Signature"] == f"v1={expected}"
        shown = json.loads(body)
        assert shown["id"] == request.headers["X-Tokenweir-Id"]
        return self._take({shown["id"]: shown})

    def _take(self, events: dict[str, dict[str, Any]]) -> web.Response:
        """All of a request, or nothing of it."""
        if self.poison & events.keys():
            return web.json_response({"error": "what"}, status=422)
        self.got |= events
        return web.Response(status=204)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    async with serving(server.serve) as server.url:
        yield server


@dataclass
class Plant:
    """A ledger, a server, and what stands between."""

    engine: Engine
    store: LedgerStore
    server: Server
    clock: Clock = field(default_factory=lambda: Clock(1_793_000_000.0))
    recorder: SinkRecorder = field(default_factory=SinkRecorder)
    answer_s: float = 10.0
    """as long as a server may think"""

    def sender(self, kind: str, **settings: Any) -> SinkSender:
        """Another process's."""
        url = self.server.url + ("/hook" if kind == "webhook" else "")
        of_all = {"name": "it", "kind": kind, "url": url, "secret": SECRET, "since": 0.0}
        made = SINKS[kind](**{**of_all, **settings})
        return SinkSender(self.engine, made, unix_time=self.clock, observer=self.recorder, answer_s=self.answer_s)

    def settle(self, *entries: LedgerEntry) -> list[str]:
        """Their ids."""
        self.store.settle(arriving(*entries))
        return [entry.entry_id for entry in entries]

    def dead_letters(self) -> list[str]:
        """The ids of open ones."""
        return [one.entry_id for one in dead_letters(self.engine, "it") if one.state == kept.OPEN]


@pytest.fixture
def plant(engine: Engine, store: LedgerStore, server: Server) -> Iterator[Plant]:
    with writing(engine) as connection:
        row = {"key_id": "key-1", "alias": "anna", "digest": b"1", "hint": "", "created_at": 1.0, "revision": 99}
        connection.execute(insert(api_keys), row)
    yield (plant := Plant(engine, store, server))
    assert (plant.recorder.failures, plant.recorder.healings) == ([], [])


def mixed() -> list[LedgerEntry]:
    """Usage, nothing, a correction, a top-up."""
    nothing = {"prompt_tokens": None, "cached_tokens": None, "completion_tokens": None, "total_tokens": None}
    return [
        an_entry(0),
        an_entry(1, **nothing, charge_nusd=0, outcome="refused_upstream"),
        an_entry(0, kind="adjustment", seq=1, prompt_tokens=-10, cached_tokens=0, completion_tokens=0, charge_nusd=-7),
        credit_entry(an_entry(9).exchange_id, "key-1", "anna", 5, "invoice", 1_793_000_000.0),
    ]


async def test_lago(plant: Plant) -> None:
    usage, _, correction, _ = plant.settle(*mixed())
    assert await plant.sender("lago", customers={"anna": "sub-1"}, event="tokens").poll()
    assert set(plant.server.got) == {usage, correction}
    told = plant.server.got[usage]
    assert (told["external_subscription_id"], told["code"]) == ("sub-1", "tokens")
    assert {"prompt_tokens": 100, "requests": 1, "charge_usd": "1.000000001"}.items() <= told["properties"].items()
    assert plant.server.got[correction]["properties"]["charge_usd"] == "-0.000000007"
    assert "cost" not in json.dumps(told)
    assert not await plant.sender("lago").poll()
    assert plant.server.requests == 1


async def test_openmeter(plant: Plant) -> None:
    usage, *_ = plant.settle(*mixed())
    await plant.sender("openmeter", subject=CustomerSource.ORGANIZATION, secret=None).poll()
    assert len(plant.server.got) == 2
    told = plant.server.got[usage]
    assert (told["subject"], told["type"], told["data"]["completion_tokens"]) == ("org_default", "llm_usage", 50)


async def test_stripe(plant: Plant) -> None:
    usage, *_ = plant.settle(*mixed())
    await plant.sender("stripe", customers={"key-1": "cus_1"}).poll()
    values = {name: (form["payload[token_type]"], form["payload[value]"]) for name, form in plant.server.got.items()}
    assert {name: value for name, value in values.items() if name.startswith(usage)} == {
        f"{usage}:input": ("input", "80"), f"{usage}:cached_input": ("cached_input", "20"),
        f"{usage}:output": ("output", "50"),
    }  # fmt: skip
    assert len(values) == 4


async def test_stripe_by_the_charge_and_a_customer_that_nobody_named(plant: Plant) -> None:
    usage, *_ = plant.settle(an_entry(0), an_entry(1, key_id="key-2", key_alias="bert"))
    await plant.sender("stripe", customers={"anna": "cus_1", "key-1": "cus_1"}, metered=MeteredQuantity.CHARGE).poll()
    assert {name: form["payload[value]"] for name, form in plant.server.got.items()} == {usage: "1000000001"}
    assert plant.recorder.refusals == [(an_entry(1).entry_id, "customers: has no id for the key of key key-2")]


async def test_a_webhook_gets_everything(plant: Plant) -> None:
    ids = plant.settle(*mixed())
    await plant.sender("webhook").poll()
    assert set(plant.server.got) == set(ids)
    assert plant.server.got[ids[0]]["entry"]["cost_usd"] == "0.123456789"
    assert plant.server.got[ids[0]]["customer"] == "key-1"


@pytest.mark.parametrize("answer", [429, 500, 401, 302, 404, "silence"])
async def test_a_server_that_fails_is_asked_again_later(plant: Plant, answer: int | str) -> None:
    ids = plant.settle(an_entry(0), an_entry(1))
    plant.server.answers = [(lambda: asyncio.sleep(1)) if answer == "silence" else int(answer)]
    plant.answer_s = 0.3 if answer == "silence" else plant.answer_s
    sender = plant.sender("openmeter")
    assert not await sender.poll()
    assert not await sender.poll()
    assert plant.server.requests == 1
    why = "TimeoutError" if answer == "silence" else f"HTTP {answer}"
    assert plant.recorder.whys == [(why, 77.0 if answer == 429 else 1.0)]
    assert plant.recorder.last is not None
    assert (plant.recorder.last.waiting, plant.recorder.last.sink.failures, plant.dead_letters()) == (2, 1, [])
    plant.clock.now += 80
    assert await sender.poll()
    assert set(plant.server.got) == set(ids)
    assert plant.recorder.last.sink.last_error is None


async def test_failures_in_a_row_are_asked_ever_later(plant: Plant) -> None:
    plant.settle(an_entry(0))
    plant.server.answers = [500] * 4
    for _ in range(4):
        await plant.sender("lago").poll()
        plant.clock.now += kept.CLAIM_S + 1
    assert [wait_s for _, wait_s in plant.recorder.whys] == [1, 2, 4, 8]


@pytest.mark.parametrize("kind", ["lago", "webhook"])
async def test_poison_is_put_aside_and_can_be_tried_again(plant: Plant, kind: str) -> None:
    ids = plant.settle(*(an_entry(number) for number in range(7)))
    plant.server.poison = {ids[2], ids[5]}
    sender = plant.sender(kind)
    assert await sender.poll()
    assert set(plant.server.got) == set(ids) - plant.server.poison
    assert sorted(plant.dead_letters()) == sorted(plant.server.poison)
    assert sorted(plant.recorder.refusals) == sorted((one, "HTTP 422") for one in plant.server.poison)
    assert not await sender.poll()
    plant.server.poison = {ids[5]}
    assert kept.retry(plant.engine, "it") == 2
    assert await sender.poll()
    assert plant.dead_letters() == [ids[5]]
    assert ids[2] in plant.server.got
    plant.server.poison = set()
    kept.retry(plant.engine, "it")
    await sender.poll()
    assert (plant.dead_letters(), set(plant.server.got)) == ([], set(ids))


async def test_an_entry_that_nobody_can_read_holds_up_nothing(plant: Plant) -> None:
    odd, good = plant.settle(an_entry(0, details={"units": {"bushels": 3}}), an_entry(1))
    await plant.sender("openmeter").poll()
    assert (plant.dead_letters(), set(plant.server.got)) == ([odd], {good})


async def test_an_answer_that_comes_in_pieces_is_read_whole(plant: Plant) -> None:
    """Of what is there already, the server's word counts."""
    ids = plant.settle(an_entry(0))
    plant.server.got = {ids[0]: {}}
    plant.server.in_pieces = True
    await plant.sender("lago").poll()
    assert (plant.dead_letters(), plant.server.requests) == ([], 1)


@pytest.mark.parametrize("kind", ["lago", "stripe", "openmeter"])
async def test_who_dies_after_sending_makes_no_duplicate(
    plant: Plant, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the server's answer and the cursor's move: another process sends all of it again."""
    ids = plant.settle(*(an_entry(number) for number in range(3)))

    def killed(*_: object) -> None:
        raise asyncio.CancelledError

    customers = {"key-1": "cus_1"}
    with monkeypatch.context() as dying:
        dying.setattr(kept, "advance", killed)
        with suppress(asyncio.CancelledError):
            await plant.sender(kind, customers=customers).poll()
    before = dict(plant.server.got)
    assert before
    ids += plant.settle(an_entry(3))
    heir = plant.sender(kind, customers=customers)
    assert not await heir.poll()  # the dead one's claim still holds
    plant.clock.now += kept.CLAIM_S + 1
    assert await heir.poll()
    assert plant.recorder.refusals == []
    assert before.items() <= plant.server.got.items()
    assert {name.partition(":")[0] for name in plant.server.got} == set(ids)
    found = sink_status(plant.engine, "it")
    assert found is not None
    assert (found.sink.sent, found.waiting) == (4, 0)


@on_both_databases
async def test_many_senders_send_each_entry_once(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "CHUNK_OF_SINGLES", 3)
    ids = plant.settle(*(an_entry(number) for number in range(10)))
    await asyncio.gather(*(plant.sender("webhook").poll() for _ in range(4)))
    assert (plant.server.requests, set(plant.server.got)) == (10, set(ids))


async def test_a_new_sink_begins_now_unless_it_is_told_otherwise(plant: Plant) -> None:
    plant.settle(an_entry(0))
    sender = plant.sender("webhook", since=None)
    assert not await sender.poll()
    (later,) = plant.settle(an_entry(1))
    assert await sender.poll()
    assert list(plant.server.got) == [later]


async def test_who_is_stopped_lets_go_at_once(plant: Plant) -> None:
    (only,) = plant.settle(an_entry(0))
    async with beside(plant.sender("webhook").run()):
        await until(lambda: plant.server.got)
    plant.settle(an_entry(1))
    assert await plant.sender("webhook").poll()
    assert {only, an_entry(1).entry_id} == set(plant.server.got)


@pytest.mark.parametrize("step", ["claim", "advance"])
async def test_a_claim_that_is_changed_meanwhile_is_let_go_too(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    plant.settle(an_entry(0))
    begun, stopped, change = Event(), Event(), getattr(kept, step)

    def slow(*arguments: Any) -> Any:
        begun.set()
        assert stopped.wait(10)
        return change(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(kept, step, slow)
        running = asyncio.get_running_loop().create_task(plant.sender("webhook").run())
        await until(begun.is_set)
        running.cancel()
        await asyncio.sleep(0.05)  # it has been told, and could have released the sink already
        stopped.set()
        with suppress(asyncio.CancelledError):
            await running
    plant.settle(an_entry(1))
    assert await plant.sender("webhook").poll()


@pytest.mark.parametrize(
    ("text", "wait_s"),
    [
        ("120", 120.0), ("999999", 3_600.0), ("-1", None), ("soon", None), (None, None), ("", None),
        ("Mon, 26 Oct 2026 01:34:50 GMT", 1_792_978_490.0 - 1_792_978_400.0),
    ],
)  # fmt: skip
def test_retry_after(text: str | None, wait_s: float | None) -> None:
    assert bounded_retry_after_s(text, 1_792_978_400.0) == wait_s
