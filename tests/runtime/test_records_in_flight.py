"""What is known of records that are still on their way, and `reconcile` with a queue before the ledger."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.cli import main
from proxy.delivery import redis_queue
from proxy.delivery.leases import LeaseParts
from proxy.journal.frames import opened_payload, record_payload
from proxy.journal.journal import Pending
from proxy.ledger.settling.clock import add_clocks
from proxy.ledger.settling.store import Arrival
from proxy.runtime.machine.ledger_stores import LedgerStores
from proxy.runtime.machine.queue import Queue
from proxy.runtime.machine.records_in_flight import read_records_in_flight, records_in_flight
from proxy.settings import Settings, load
from proxy.storage.redis_client import QueueUnavailable
from tests.ledger.priced_entries import FIRST, NODE, a_real_entry, a_real_record
from tests.support.postgres import Server
from tests.support.valkey import Valkey

CONFIG: dict[str, Any] = {
    "providers": {"tera": {"base_url": "http://127.0.0.1:1/v1"}},
    "models": {"*": {"provider": "tera"}},
    "queue_shards": 2,
    "key_pepper": "${PEPPER}",
    "ledger": "${LEDGER}",
    "queue": "${QUEUE}",
}


@pytest.fixture
def config(tmp_path: Path, valkey: Valkey, postgres: Server, migrated: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a Postgres and a Valkey of the test's own."""
    file = tmp_path / "tokenweir.yaml"
    file.write_text(yaml.safe_dump(CONFIG))
    monkeypatch.setenv("PEPPER", "5e" * 32)
    monkeypatch.setenv("QUEUE", valkey.url)
    monkeypatch.setenv("LEDGER", postgres.url(postgres.new_database(migrated)))
    return file


def settings_of(config: Path) -> Settings:
    return load(config, os.environ)


def pending(number: int) -> Pending:
    return Pending(FIRST + number, record_payload(a_real_record(number)))


async def test_every_record_and_every_lease_is_known(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_queue, "_READ_AT_ONCE", 3)
    queue = Queue(settings_of(config))
    assert (await records_in_flight(queue)).queued == []
    for shard, numbers in zip(queue.shards, (range(6), range(6, 10)), strict=True):
        await shard.add([pending(number) for number in numbers], NODE)
    parts = LeaseParts(opened_payload(a_real_record(20).opened), b"")
    await queue.leases.renew("node-b", "1.1", {a_real_entry(20).exchange_id: parts}, ())
    known = await records_in_flight(queue)
    await queue.close()
    assert known.queued == [(NODE, FIRST + number) for number in range(10)]
    assert known.oldest_age_s is not None
    assert 0 <= known.oldest_age_s < 60
    assert known.leased == {"node-b": {a_real_entry(20).exchange_id}}


async def test_a_queue_that_is_away_says_so(config: Path, valkey: Valkey) -> None:
    valkey.kill()
    with pytest.raises(QueueUnavailable):
        await read_records_in_flight(settings_of(config))


def test_a_command_sees_what_a_shard_has_settled_without_a_worker(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = LedgerStores.open(settings_of(config))
    add_clocks(store.engine, 2)
    store.ledger.of_shard(1).settle([Arrival(a_real_entry(1), NODE, FIRST)])
    store.close()
    assert main(["ledger", "--json", "--config", str(config)]) == 0
    assert a_real_entry(1).exchange_id in capsys.readouterr().out


def test_reconcile_tells_what_waits_in_the_queue_from_what_is_lost(
    config: Path, valkey: Valkey, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of six records the first and the last arrived, and two are still in the queue; nothing is given any time."""
    settings = settings_of(config)
    store = LedgerStores.open(settings)
    store.ledger.settle([Arrival(a_real_entry(n), NODE, FIRST + n) for n in (0, 5)])
    store.close()

    async def send() -> None:
        queue = Queue(settings)
        await queue.shards[1].add([pending(2), pending(3)], NODE)
        await queue.close()

    asyncio.run(send())
    command = ["reconcile", "--config", str(config)]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "(4 in flight)" in printed
    assert "queue         ok" in printed
    assert "leases        ok" in printed
    valkey.ask("FLUSHALL")
    assert main(command) == 0
    valkey.kill()
    assert main(command) == 1
    printed_after, said = capsys.readouterr()
    assert said.startswith("tokenweir: queue: cannot be read: ")
    assert "terminal      ok" in printed_after
