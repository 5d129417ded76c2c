"""Makes the golden files beside it, with the code of 0.1: `python -m tests.golden.make`.

It was run once, on 0.1, and is in the history for the record only: files made by later code would prove nothing.
"""

# ruff: noqa: E501

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from msgspec import structs
from redis.asyncio import Redis
from sqlalchemy import Engine

from proxy.billing.correction import Wanted
from proxy.billing.limits import Gate, Limits, OnExhausted, WhenDown
from proxy.billing.prices import configured
from proxy.billing.record import Attempt, Bills, Opened, Outcome, Rates, UsageRecord
from proxy.billing.reservation import Change, Hold, Sum
from proxy.billing.settlement import content_hash, entry
from proxy.budgets import thresholds as alerts
from proxy.budgets.redis.store import RedisBudgets
from proxy.budgets.sqlite.store import LocalBudgets
from proxy.budgets.store import BudgetStore, Own
from proxy.delivery.leases import Parts
from proxy.delivery.redis_leases import RedisLeases
from proxy.delivery.redis_queue import RedisQueue
from proxy.foundation.secret import Secret
from proxy.journal import log
from proxy.journal.frames import decode_record, opened_payload
from proxy.journal.journal import Journal, Pending
from proxy.journal.progress import ProgressTable
from proxy.journal.recovery import recover, sweep
from proxy.keys import secrets as key_secrets
from proxy.keys.claims_local import LocalClaims
from proxy.keys.claims_redis import RedisClaims
from proxy.keys.idempotency import Claims
from proxy.ledger.accounts.account_store import AccountStore
from proxy.ledger.accounts.audit_log import Actor, Acts
from proxy.ledger.accounts.credit import add_credit
from proxy.ledger.accounts.key_store import KeyStore
from proxy.ledger.accounts.owners import Owner
from proxy.ledger.schema.migrate import migrate
from proxy.ledger.settling.corrections import Corrections
from proxy.ledger.settling.dead_letters import Letters
from proxy.ledger.settling.store import Arrival, DeadLetter, LedgerStore
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.usage import NOTHING, Evidence, PromptEvidence, Reading, Usage, UsageSource
from proxy.reports.export import Source
from proxy.reports.reports import EntryFilter, EntryReader, entry_json
from proxy.settings.sinks import Metered, SinkKind, SinkSettings, Subject
from proxy.sinks import progress as sinks
from proxy.sinks import webhook
from proxy.sinks.formats import shape_of
from proxy.storage.database import open_engine, sqlite_url
from proxy.storage.redis_client import open_redis
from tests.golden.reading import FourCharacters, dump, exchange_id
from tests.support.postgres import binaries, new_cluster, own_server, unprivileged
from tests.support.valkey import Valkey

HERE = Path(__file__).parent
BEGAN = 1_793_000_000.25
NOW = 1_800_000_000.25
PEPPER = b"golden pepper of thirty-two byte"
SECRET = "tw-" + "g" * 43

FLAT = configured(Rates(input=130_000_000, cached_input=70_000_000, output=410_000_000))
COST = configured(Rates(input=110_000_000, cached_input=50_000_000, output=370_000_000))
DEARER = configured(Rates(input=260_000_000, cached_input=140_000_000, output=820_000_000))
FULL = Rates(
    input=2_500_000_000, cached_input=250_000_000, output=10_000_000_000, cache_write=3_125_000_000,
    cache_write_1h=5_000_000_000, audio_input=40_000_000_000, audio_output=80_000_000_000,
    reasoning=12_000_000_000, image=40_000_000, audio_hour=360_000_000, characters=15_000_000_000,
    searches=10_000_000_000, request=5_000,
)  # fmt: skip
TIERED = configured(
    FULL,
    structs.replace(FULL, input=5_000_000_000, above_prompt_tokens=128_000),
    service_tiers={"priority": (structs.replace(FULL, output=20_000_000_000),)},
)
ATTEMPTS = (
    Attempt("tera", "tera-large-0901", "connection refused", None, BEGAN + 9.5, 12.5),
    Attempt("giga", "giga-1", "HTTP 503", 503, BEGAN + 9.6, 250.0),
    Attempt("mega", "mega-1", "HTTP 429", 429, BEGAN + 9.9, 31.25),
)


def opened(number: int, **changes: Any) -> Opened:
    fields: dict[str, Any] = {
        "exchange_id": exchange_id(number), "key_id": "key_golden", "key_alias": "häuser", "provider": "electron",
        "model": "electron", "upstream_model": "electron-2", "endpoint": "/v1/chat/completions", "streamed": True,
        "started_at": BEGAN + number, "price": FLAT, "cost": COST, "prompt_tokens_estimate": 17,
        "completion_tokens_max": None, "slot": 0,
    }  # fmt: skip
    return Opened(**{**fields, **changes})


def record(of: Opened, **changes: Any) -> UsageRecord:
    fields: dict[str, Any] = {
        "opened": of, "outcome": Outcome.SERVED,
        "reading": Reading(Usage(1_100, 300, 290, None, 1_390), UsageSource.REPORTED), "bills": Bills.EVERYTHING,
        "events": 31, "bytes": 8_765, "duration_ms": 1234.567, "first_token_ms": 0.1, "finish_reason": "stop",
        "provider_response_id": "chatcmpl-1",
    }  # fmt: skip
    return UsageRecord(**{**fields, **changes})


def estimated(usage: Usage, **changes: Any) -> Reading:
    return Reading(usage, UsageSource.ESTIMATED, "ridge-2", 0.25, **changes)


UNITS = Usage(2_000, 400, 900, 300, 2_900, 600, 200, 50, 60, 2, 61_500, 1_234, 3, 10, 20)


def records() -> list[UsageRecord]:
    """Every outcome, source, part of a bill, unit, tier; with and without prices, attempts, holds."""
    failed = {"finish_reason": None, "provider_response_id": None}
    return [
        record(opened(1)),
        record(opened(2, price=None, cost=None), details={"flags": ["a", "b"], "ratio": 0.1, "usage": {"x": None}}),
        record(opened(3, price=TIERED, cost=TIERED), reading=Reading(UNITS, UsageSource.REPORTED, service_tier="priority")),
        record(
            opened(4, price=TIERED, held_usd=1_234_567_890),
            reading=Reading(Usage(130_000, 0, 10, None, 130_010), UsageSource.REPORTED),
        ),
        record(
            opened(5, key_id="key_other", key_alias="other", completion_tokens_max=64),
            outcome=Outcome.CLIENT_LEFT, reading=estimated(Usage(17, None, 64, None, 81), capped=True, hidden_tokens=12),
            first_token_ms=None, **failed,
        ),
        record(
            opened(6, bill={"failed_after_content": "prompt"}),
            outcome=Outcome.UPSTREAM_FAILED, reading=estimated(Usage(17, None, 5, None, 22)), bills=Bills.PROMPT, **failed,
        ),
        record(
            opened(7, streamed=False), outcome=Outcome.UPSTREAM_STALLED,
            reading=estimated(Usage(17, None, 5, None, 22)), bills=Bills.OUTPUT, events=0, **failed,
        ),
        record(opened(8), outcome=Outcome.BUDGET_CUT, finish_reason="budget"),
        record(opened(9), outcome=Outcome.SHUT_DOWN, reading=NOTHING, bills=Bills.NOTHING, events=0, bytes=0, **failed),
        record(opened(10, attempts=ATTEMPTS), provider_response_id="resp-10"),
        record(
            opened(11, endpoint="/v1/images/generations", price=TIERED), outcome=Outcome.SERVED,
            reading=Reading(Usage(images=4), UsageSource.REPORTED), events=0,
        ),
        record(opened(12), outcome=Outcome.REFUSED_UPSTREAM, reading=NOTHING, bills=Bills.NOTHING, **failed),
        record(opened(13, model="häuser/größe"), finish_reason="\ud800broken"),
    ]  # fmt: skip


# -- journal and progress


def make_journal(folder: Path) -> list[Pending]:
    """Two runs; the second is copied while it runs, with a torn frame at its end."""
    log.SEGMENT_BYTES = 8_192
    live = folder / "live"
    journal = Journal.open(live, bytes_max=1 << 30)
    settled = [opened(100 + number) for number in range(12)]
    for one in settled:
        journal.begin(one)
        journal.finish(record(one))
    journal.begin(opened(1))
    journal.finish(records()[0])
    journal.settled([one.seq for one in journal.pending(12)])
    journal.begin(opened(23, slot=3))
    journal.close()
    journal = Journal.open(live, bytes_max=1 << 30, durability="power")
    journal.begin(opened(20, slot=0, price=TIERED))
    journal.begin(opened(21, slot=1, completion_tokens_max=9))
    journal.begin(opened(22, slot=2))
    journal.pass_on(opened(22, slot=2, provider="mega", upstream_model="mega-1", attempts=ATTEMPTS[:1]))
    journal.begin(opened(24, slot=4))
    for one in records()[1:]:
        journal.begin(one.opened)
        journal.finish(one)
    journal.begin(opened(30))
    journal.finish(record(opened(30)))
    [last] = [one.seq for one in journal.pending(99)][-1:]
    journal.settled([last])
    journal.sync()
    kept = HERE / "journal"
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir()
    for path in sorted(live.glob("*.log")):
        (kept / path.name).write_bytes(path.read_bytes())
    (kept / "node.json").write_bytes((live / "node.json").read_bytes())
    newest = max(kept.glob("*.log"))
    newest.write_bytes(newest.read_bytes() + newest.read_bytes()[:100])
    pending = journal.pending(99)
    (HERE / "recovered.json").write_text(recovered(journal, folder))
    journal.close()
    return pending


def recovered(journal: Journal, folder: Path) -> str:
    times = iter([BEGAN + 40, BEGAN + 41, BEGAN + 42])
    table = ProgressTable.open(folder / "progress.table", 8, unix_time=lambda: next(times))
    slots = [table.claim(exchange_id(number)) for number in (20, 21, 22, 99)]
    slots[0].deliver(12, 4_000)
    slots[0].note(Evidence(text_events=9, chars_latin=90), UNITS, 10)
    slots[1].deliver(40, 12_000)
    slots[1].note(Evidence(*range(1, 17)), Usage(15, None, 3), 20)
    slots[2].deliver(3, 900)
    table.claim(exchange_id(24))
    (HERE / "progress.table").write_bytes((folder / "progress.table").read_bytes())
    records = recover(journal.unfinished(), table, FourCharacters(), estimator_version="four-1")
    return json.dumps(msgspec.to_builtins(records), indent=1, ensure_ascii=False) + "\n"


# -- Redis


async def dumped(name: str, redis: Any) -> None:
    found = await dump(redis)
    (HERE / "redis" / name).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    await redis.flushall()


async def make_redis(url: str, pending: list[Pending], folder: Path) -> None:
    (HERE / "redis").mkdir(exist_ok=True)
    plain: Any = Redis.from_url(url)
    client = open_redis(url)
    node = msgspec.json.decode((HERE / "journal" / "node.json").read_bytes())["node_id"]
    queue = RedisQueue(client, consumer="worker-golden")
    await queue.add(pending, node)
    await queue.take(2)
    await dumped("queue.json", plain)
    await make_leases(RedisLeases(client), node)
    await dumped("leases.json", plain)
    await make_budgets(lambda name: RedisBudgets(client, node=name, unix_time=lambda: clock[0]), 1.6)
    await dumped("budgets.json", plain)
    await make_claims(RedisClaims(client, remember_s=3_600))
    await dumped("claims.json", plain)
    local = folder / "claims.db"
    await make_claims(LocalClaims(local, remember_s=86_400, unix_time=lambda: NOW))
    sql_of(local, HERE / "claims.sql")
    await make_budgets(lambda name: LocalBudgets(folder / "budgets.db", node=name, unix_time=lambda: clock[0]), 0)
    sql_of(folder / "budgets.db", HERE / "budgets.sql")
    await client.aclose()
    await plain.aclose()


async def make_leases(board: RedisLeases, node: str) -> None:
    times = iter([BEGAN + 40, BEGAN + 41])
    with tempfile.TemporaryDirectory() as folder:
        table = ProgressTable.open(Path(folder) / "table", 4, unix_time=lambda: next(times))
        slots = [table.claim(exchange_id(number)) for number in (40, 41)]
        slots[0].deliver(12, 4_000)
        slots[0].note(Evidence(text_events=9, chars_latin=90), UNITS, 10)
        slots[1].deliver(40, 12_000)
        slots[1].note(Evidence(text_events=20, chars_latin=400), None, 20)
        parts = {
            exchange_id(40): Parts(opened_payload(opened(40, slot=0)), table.raw(0)),
            exchange_id(41): Parts(opened_payload(opened(41, slot=1, attempts=ATTEMPTS)), table.raw(1)),
            exchange_id(42): Parts(opened_payload(opened(42, slot=9)), b""),
            exchange_id(43): Parts(opened_payload(opened(43, slot=9)), b""),
        }
    await board.renew(node, "2.1", parts, ())
    await board.renew(node, "2.2", {}, [exchange_id(43)])
    await board.renew("00000000000000aa", "7.3", {}, ())
    await board.nodes()


# -- budgets and claims

clock = [NOW]
KEY = Gate("key_golden", 1_790_000_000.5, 5_000_000_000, rpm=4, tpm=10_000, parallel=3)
PROJECT = Gate("proj_golden", 1_788_220_800.0, 1_000_000_000_000_000)
CREDIT = Gate("org_golden/credit", 0.0, 0)
GATES = KEY, PROJECT, CREDIT


async def make_budgets(handle: Any, warm_s: float) -> None:
    """See the expectations in test_budgets.py."""
    clock[0] = NOW - 2
    one: BudgetStore = handle("node-one")
    other: BudgetStore = handle("node-other")
    await one.whole()
    await asyncio.sleep(0)
    clock[0] = NOW
    for store in (one, other):
        await store.announce(lambda: Own((), (), ()))
    us = int(NOW * 1e6)
    await one.seed([Sum(gate.gate_id, gate.since, 1, us - 9) for gate in GATES])
    await one.forget_sums()
    spent = (1_000_000_000, 999_999_990_000_000, -3_000_000_000)
    await one.seed([Sum(gate.gate_id, gate.since, nusd, us) for gate, nusd in zip(GATES, spent, strict=True)])
    for store, name, nusd in ((one, "x-runs", 700), (other, "x-other", 900), (one, "x-closed", 800)):
        print(await store.reserve(Hold(name, GATES, nusd, 1_000)))
    await one.close([Hold("x-closed", GATES, 333, 444)])
    print(await one.reserve(Hold("x-free", GATES, 50, 10)))
    await one.close([Hold("x-free", GATES, 0, 0)])
    await one.grow("x-runs", 750)
    change = Change("x-elsewhere", us + 5, NOW - 9, 1_111, ("key_golden", "proj_golden", "org_golden/credit"))
    assert await one.absorb(us, [change], us + 10)
    for standing in await one.standings():
        print(standing)
    await one.aclose()
    await other.aclose()


async def make_claims(store: Any) -> None:
    claims = Claims(store, pepper=PEPPER, answer_bytes_max=1_000, on_failure=lambda error: None)
    for token, number in (("running", 1), ("ended", 2), ("kept", 3)):
        assert await claims.claim("key_golden", token, b'{"model":"electron"}', exchange_id(number)) is None
    await claims.end("key_golden", "ended", exchange_id(2), billed=True, answer=None)
    await claims.end("key_golden", "kept", exchange_id(3), billed=True, answer=b'{"id":"chatcmpl-3"}')
    await claims.aclose()


def sql_of(database: Path, file: Path) -> None:
    connection = sqlite3.connect(database)
    if "boot" in str(connection.execute("SELECT group_concat(sql) FROM sqlite_schema").fetchone()):
        connection.execute("UPDATE life SET boot = 'boot of 0.1', warm_until = 0")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    lines = [f"PRAGMA user_version = {version};", *connection.iterdump()]
    connection.close()
    file.write_text("\n".join(lines) + "\n")


# -- ledger


def fill(engine: Engine, pending: list[Pending], node: str) -> None:
    """Entries, letters and rows of every kind."""
    ticks = [BEGAN + 100.0]

    def now() -> float:
        ticks[0] += 1.0
        return ticks[0]

    store = LedgerStore(engine, content_hash=content_hash, clock=now)
    make_keys(engine, now)
    settle(store, pending, node)
    swept(store, node)
    corrections = Corrections(engine, store)
    corrections.adjust(exchange_id(1), Wanted(charge_usd=1_000), "goodwill")
    corrections.adjust(exchange_id(8), Wanted(prompt_tokens=1_000, completion_tokens=200), "miscounted – sorry")
    corrections.rerate("electron", lambda _: (DEARER, None), since=BEGAN + 9, until=BEGAN + 11)
    for number, nusd, why in ((60, 50_000_000_000, "paid in"), (61, -1_000_000_001, "refund")):
        add_credit(
            store, exchange_id=exchange_id(number), scope_id="org_golden", name="Größe AG", nusd=nusd, why=why, at=BEGAN
        )
    make_letters(engine, store, node)
    make_acts(engine, now)
    make_alerts(engine)
    make_sinks(engine)


def make_keys(engine: Engine, now: Any) -> None:
    accounts, keys = AccountStore(engine, clock=now), KeyStore(engine, clock=now)
    accounts.create_organization(
        account_id="org_golden",
        name="Größe AG",
        limits=Limits(prepaid=True, budget_usd=7_000_000_000_000, budget_window="none"),
    )
    accounts.create_project(
        account_id="proj_golden",
        name="ops",
        organization="org_golden",
        limits=Limits(budget_usd=1, budget_window="4w", parallel=9),
    )
    accounts.create_project(account_id="proj_blocked", name="old", organization="org_default")
    accounts.block("proj_blocked")
    made: dict[str, Any] = {"models": None, "expires_at": None, "hint": "tw-…gggg"}
    keys.create(
        **made | {"models": ["häuser/größe", "electron"]}, key_id="key_golden", alias="häuser",
        digest=key_secrets.digest(SECRET, PEPPER), project_id="proj_golden",
        limits=Limits(budget_usd=5_000_000_000, budget_window="calendar_month", rpm=60, tpm=90_000, parallel=3),
        on_exhausted=OnExhausted.CUT, when_down=WhenDown.OPEN, tags=["prod", "größe"],
    )  # fmt: skip
    keys.create(**made, key_id="key_other", alias="other", digest=bytes(32), when_down=WhenDown.CLOSED)
    keys.create(
        **made | {"expires_at": BEGAN + 1e6},
        key_id="key_rotated",
        alias="rotated",
        digest=b"1" * 32,
        limits=Limits(prepaid=True),
    )
    keys.rotate("key_rotated", digest=b"2" * 32, hint="tw-…2222", old_until=BEGAN + 5e5)
    for name, change in (("blocked", keys.block), ("revoked", keys.revoke)):
        keys.create(**made, key_id=f"key_{name}", alias=name, digest=name.encode().ljust(32))
        change(f"key_{name}")


def settle(store: LedgerStore, pending: list[Pending], node: str) -> None:
    done = store.settle([Arrival(entry(one.record), node, one.seq) for one in pending])
    print("settled", len(done.inserted))


def swept(store: LedgerStore, node: str) -> None:
    """A sweep, a better one, and the machine's own word, each an entry; one sweep stays alone."""
    del node
    for events in (10, 20):
        late = record(
            opened(50), outcome=Outcome.CRASHED, reading=estimated(Usage(17, None, events, None, 17 + events)),
            events=events, bytes=events * 300, first_token_ms=None, finish_reason=None, provider_response_id=None,
            duration_ms=0.0, details={"swept": True},
        )  # fmt: skip
        store.settle([Arrival(entry(late))])
    store.settle([Arrival(entry(record(opened(50))), "00000000000000aa", (1 << 40) + 1)])
    alone = sweep(opened(51), None, FourCharacters(), estimator_version="four-1")
    store.settle([Arrival(entry(alone))])
    odd = structs.replace(opened(52), exchange_id=str(UUID(int=5)))
    store.settle([Arrival(entry(record(odd)))])


def make_letters(engine: Engine, store: LedgerStore, node: str) -> None:
    del node
    other, epoch = "00000000000000aa", 1 << 40
    unreadable = DeadLetter("unreadable: UndecodableError", '{"version": 9}', node=other, journal_seq=epoch + 2)
    store.settle((), [unreadable])
    store.settle((), [unreadable])
    conflict = record(opened(1), events=32)
    store.settle([Arrival(entry(conflict), other, epoch + 3)])
    store.settle([Arrival(entry(records()[0]), other, epoch + 4)])
    later = msgspec.json.encode(record(opened(53))).decode()
    store.settle((), [DeadLetter("unreadable: UndecodableError", later, node=other, journal_seq=epoch + 5)])
    store.settle((), [DeadLetter("delivered 5 times and never settled", "{}", node=other, journal_seq=epoch + 6)])
    letters = Letters(engine, store, to_entry=lambda payload: entry(decode_record(payload)))
    for one in letters.open():
        if one.journal_seq == epoch + 5:
            print("retried", letters.retry(one))
        if one.journal_seq == epoch + 6:
            letters.drop(one, "nobody's", BEGAN + 500)


def make_acts(engine: Engine, now: Any) -> None:
    acts = Acts(engine, clock=now)
    admin = Actor("admin", "api", "192.0.2.1")
    with acts.act(admin, "key.create", None, {"alias": "häuser", "limits": {"rpm": 60}}) as act:
        act.target = "key_golden"
    for error, action in ((ValueError("no such key"), "key.block"), (RuntimeError("x"), "key.revoke")):
        try:
            with acts.act(Actor("root", "cli", "golden-host"), action, "key_nobody", None):
                raise error
        except (ValueError, RuntimeError):
            pass
    acts._begin(admin, "credit.add", type(act)("org_golden"), {"usd": "50"})


def make_alerts(engine: Engine) -> None:
    def alert(number: int, threshold: int) -> alerts.Alert:
        return alerts.Alert(
            f"alert_{number:032x}", "key_golden", threshold, 1_792_800_000.0, 4_000_000_000, 5_000_000_000,
            BEGAN + number, alerts.OPEN, 0, BEGAN + number, None,
        )  # fmt: skip

    alerts.notice(engine, [alert(1, 50), alert(2, 80), alert(3, 100)])
    first, second, _ = alerts.claim(engine, BEGAN + 10, 3)
    alerts.told(engine, first)
    alerts.untold(engine, second, "HTTP 500", BEGAN + 90_000)


def make_sinks(engine: Engine) -> None:
    sinks.begin(engine, "stripe", 0.0)
    sinks.begin(engine, "hook", BEGAN)
    mine = sinks.claim(engine, "stripe", "golden-host:1", BEGAN)
    assert mine is not None
    page = sinks.pending(engine, mine)[:5]
    bad = [page[1][0].entry_id, page[2][0].entry_id]
    assert sinks.advance(engine, mine, page, dict.fromkeys(bad[:1], "HTTP 400"), BEGAN + 700)
    sinks.retry(engine, "stripe")
    mine = sinks.claim(engine, "stripe", "golden-host:1", BEGAN)
    assert mine is not None
    assert sinks.advance(engine, mine, page[3:4], {page[3][0].entry_id: "HTTP 422"}, BEGAN + 701)
    mine = sinks.claim(engine, "hook", "golden-host:2", BEGAN + 1)
    assert mine is not None
    sinks.failed(engine, mine, "HTTP 503", 60.0, BEGAN + 702)


def make_ledgers(pending: list[Pending], folder: Path) -> None:
    node = msgspec.json.decode((HERE / "journal" / "node.json").read_bytes())["node_id"]
    url = sqlite_url(folder / "ledger.db")
    migrate(url)
    engine = open_engine(url)
    fill(engine, pending, node)
    entries = sorted(EntryReader(engine, EntryFilter()).settled(), key=lambda one: one[0].entry_id)
    lines = [json.dumps(entry_json(one) | {"seq": one.seq}, ensure_ascii=False) for one, _ in entries]
    (HERE / "entries.jsonl").write_text("\n".join(lines) + "\n")
    bodies([one for one, _ in entries])
    engine.dispose()
    sql_of(folder / "ledger.db", HERE / "ledger-sqlite.sql")
    with own_server(new_cluster(folder / "cluster")) as server:
        name = server.new_database()
        migrate(server.url(name))
        engine = open_engine(server.url(name))
        fill(engine, pending, node)
        engine.dispose()
        options = ["--inserts", "--no-owner", "--no-privileges", "--no-comments"]
        made = subprocess.run(
            unprivileged([str(binaries() / "pg_dump"), *options, server.url(name, user="postgres")]),
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        kept = [
            line
            for line in made.stdout.splitlines()
            if line and not line.startswith(("\\", "--", "SET transaction_timeout"))
        ]
        (HERE / "ledger-postgres.sql").write_text("\n".join(kept) + "\n")


def bodies(entries: list[Any]) -> None:
    """What sinks and the webhook of alerts are sent."""
    owner = Owner("key_golden", "häuser", "proj_golden", "ops", "org_golden", "Größe AG")
    secret = Secret("golden signing secret")
    chosen = {
        "usage": next(one for one in entries if one.exchange_id == exchange_id(3) and one.kind == "usage"),
        "adjustment": next(one for one in entries if one.exchange_id == exchange_id(8) and one.kind == "adjustment"),
        "credit": next(one for one in entries if one.kind == "credit"),
    }
    found: dict[str, Any] = {}
    for kind in SinkKind:
        for metered in Metered if kind is SinkKind.STRIPE else (Metered.TOKENS,):
            settings = SinkSettings(
                name="golden", kind=kind, url="https://sink.invalid", secret=secret, subject=Subject.PROJECT,
                customers={"proj_golden": "cus_1"}, metered=metered,
            )  # fmt: skip
            shape = shape_of(settings)
            sent = []
            for name, one in chosen.items():
                for event in shape.events(Source(one, BEGAN + 900, owner)):
                    request = shape.request([event], BEGAN + 901)
                    sent.append(
                        {
                            "of": name,
                            "url": request.url,
                            "headers": dict(request.headers),
                            "body": request.body.decode(),
                        }
                    )
            found[f"{kind.value}/{metered.value}"] = sent
    alert = alerts.Alert(
        "alert_" + "0" * 32, "key_golden", 80, 1_792_800_000.0, 4_000_000_000, 5_000_000_000, BEGAN, "open", 0, BEGAN, None
    )  # fmt: skip
    subject = alerts.Subject(
        "key_golden", "key", "häuser", Limits(budget_usd=5_000_000_000, budget_window="calendar_month"), BEGAN
    )
    found["alert"] = webhook.body_of(alert, subject).decode()
    (HERE / "bodies.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def make_rest() -> None:
    estimator = Estimator()
    for number in range(1, 30):
        evidence = Evidence(
            text_events=number * 3, chars_latin=number * 14, tool_chars=number, tool_events=1, tool_calls=1
        )
        prompt = PromptEvidence(messages=2, chars_latin=40 * number, tools=1, tool_chars=90)
        usage = Usage(20 * number, 0, 5 * number, number, 25 * number)
        estimator.learn("electron/electron-2", evidence=evidence, prompt=prompt, usage=usage)
        estimator.learn_counted("electron/electron-2", evidence=evidence, usage=usage, counted=4 * number)
    (HERE / "estimator.json").write_text(json.dumps(estimator.export()))
    (HERE / "pepper").write_bytes(PEPPER)
    print(
        estimator.completion(
            "electron/electron-2",
            Evidence(text_events=30, chars_latin=140),
            completion_tokens_max=None,
            bytes_seen=9999,
        )
    )
    print(estimator.prompt_tokens("electron/electron-2", PromptEvidence(messages=1, chars_latin=400)))


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        pending = make_journal(folder)
        server = Valkey(folder / "valkey").start()
        try:
            asyncio.run(make_redis(server.url, pending, folder))
        finally:
            server.close()
        make_ledgers(pending, folder)
        make_rest()


if __name__ == "__main__":
    main()
