"""A whole deployment of 0.1, killed in mid-stream, started with today's program: all is settled once, and adds up."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from redis.asyncio import Redis

from proxy.billing.entries import entry_id
from tests.golden.reading import HERE, NODE, exchange_id, golden_entries, load_redis, load_sqlite, of_this_boot
from tests.support.postgres import Server
from tests.support.tokenweir import Listening, Tokenweir
from tests.support.valkey import Valkey

# Those that the journal's first run has settled, and what the journal's crash left open.
SETTLED, OPEN = range(100, 112), (20, 21, 22, 23, 24)
WAIT_S = 60.0
PROVIDERS = {"tera": {"base_url": "http://127.0.0.1:1/v1"}}


def receipts() -> Iterator[str]:
    """SQL that gives the golden ledger what the golden journal's first run had settled: its own ledger was another.

    They are copies of one that nothing was charged for.
    """
    others = """
        kind, key_id, key_alias, provider, model, upstream_model, endpoint, streamed, outcome, finish_reason,
        usage_source, estimator, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, total_tokens,
        events, bytes, cost_usd, charge_usd, price_version, provider_response_id, started_at, first_token_ms,
        duration_ms, details, seq, content_hash, settled_at, node
    """
    free = f"exchange_id = '{exchange_id(9)}' AND kind = 'usage'"
    for seq, number in enumerate(SETTLED, (1 << 40) + 1):
        one = exchange_id(number)
        yield (
            f"INSERT INTO ledger_entries (entry_id, exchange_id, journal_seq, {others}) "
            f"SELECT '{entry_id(one, 'usage', 0)}', '{one}', {seq}, {others} FROM ledger_entries WHERE {free}"
        )
    for table in ("balances", "usage_daily"):
        of_model = "" if table == "balances" else "AND model = 'electron'"
        yield f"UPDATE {table} SET entries = entries + 12 WHERE key_id = 'key_golden' {of_model}"


def left_behind(folder: Path) -> None:
    """The data folder of a proxy of 0.1 that was killed."""
    folder.mkdir(mode=0o700)
    shutil.copytree(HERE / "journal", folder / "journal")
    for name in ("progress.table", "pepper", "estimator.json"):
        shutil.copy(HERE / name, folder)


def deployed(folder: Path, **settings: Any) -> Tokenweir:
    left_behind(folder / "data")
    models = {"*": {"provider": "tera", "price": {"input": 1, "output": 1}}}
    return Tokenweir(
        folder, providers=PROVIDERS, models=models, shutdown_grace_s=0.0, lease_s=1.0, exchanges_max=8, **settings
    )


def until_settled(served: Tokenweir, expected: set[str]) -> list[dict[str, Any]]:
    """The ledger's entries as soon as these exchanges are there, and the journal is empty."""
    entries = served.until(lambda found: expected <= {one["exchange_id"] for one in found}, timeout_s=WAIT_S)
    until = time.monotonic() + WAIT_S
    while problems := served.unreconciled():
        assert time.monotonic() < until, problems
        time.sleep(0.5)
    return entries


def assert_once(entries: list[dict[str, Any]]) -> None:
    """One entry for each exchange, and what 0.1 had settled is as it was."""
    usages = [one["exchange_id"] for one in entries if one["kind"] == "usage"]
    assert len(usages) == len(set(usages))
    golden = {one["entry_id"]: one for one in golden_entries()}
    now = {one["entry_id"]: one for one in entries}
    assert {name: {**now[name], "seq": one["seq"]} for name, one in golden.items()} == golden
    added = {one["exchange_id"] for one in entries if one["entry_id"] not in golden}
    assert added >= {exchange_id(number) for number in (*SETTLED, *OPEN)}
    adjusted = [one["entry_id"] for one in entries if one["kind"] == "adjustment" and one["entry_id"] not in golden]
    assert adjusted == []


def drop_letters(served: Tokenweir) -> None:
    """The two open letters of the golden ledger are an operator's."""
    for line in served.said("dead-letters", "list", "--json").splitlines():
        served.said("dead-letters", "drop", json.loads(line)["id"], "--reason", "seen")


@pytest.mark.thorough
@pytest.mark.process
def test_on_one_machine(tmp_path: Path) -> None:
    served = deployed(tmp_path)
    file = tmp_path / "data" / "ledger.db"
    load_sqlite("ledger-sqlite.sql", file)
    with closing(sqlite3.connect(file)) as ledger:
        for statement in receipts():
            ledger.execute(statement)
        ledger.commit()
    (tmp_path / "budgets").mkdir()
    of_this_boot(tmp_path / "budgets")
    for path in (tmp_path / "budgets").iterdir():
        if path.name != "draft":
            path.rename(tmp_path / "data" / path.name)
    try:
        served.start()
        drop_letters(served)
        assert_once(until_settled(served, {exchange_id(number) for number in OPEN}))
        assert served.stop() == 0
    finally:
        served.close()


@pytest.fixture
def ledger_url(postgres: Server) -> Iterator[str]:
    name = postgres.new_database()
    with psycopg.connect(postgres.url(name), autocommit=True) as connection:
        connection.execute((HERE / "ledger-postgres.sql").read_bytes())
    with psycopg.connect(postgres.url(name)) as connection:
        for statement in receipts():
            connection.execute(statement.encode())
    yield postgres.url(name)
    postgres.drop_database(name)


async def _fill(url: str) -> None:
    client: Any = Redis.from_url(url)
    for name in ("queue.json", "leases.json", "budgets.json", "claims.json"):
        await load_redis(client, name)
    await client.aclose()


@pytest.mark.process
@pytest.mark.thorough
def test_on_several_machines(tmp_path: Path, ledger_url: str, valkey: Valkey) -> None:
    """Its queue holds what its journal holds too, and a worker of 0.1 had taken some of it."""
    asyncio.run(_fill(valkey.url))
    served = deployed(tmp_path, ledger_url=ledger_url, queue_url=valkey.url)
    served.environment["TEST_PEPPER"] = (HERE / "pepper").read_bytes().hex()
    worker: Listening = served.worker()
    try:
        served.command("migrate")
        worker.start()
        served.start()
        drop_letters(served)
        assert_once(until_settled(served, {exchange_id(number) for number in OPEN}))
        assert served.stop() == 0
    finally:
        served.close()
        worker.close()


def test_the_journal_is_of_the_node_that_the_queue_names() -> None:
    assert NODE in (HERE / "journal" / "node.json").read_text()
