"""A ledger of a million entries is moved, in bounded memory."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.ledger.entries import a_ledger, arriving, id_at
from tests.ledger.priced_entries import a_real_entry, a_real_store
from tests.support.long_runs import part_of
from tests.support.postgres import own_server
from tests.support.tokenweir import COMMAND

ENTRIES = part_of(1_000_000)
BATCH, KEYS, DAYS = 5_000, 1_000, 360
BYTES_MAX = 300 << 20


def fill(folder: Path) -> None:
    """Settle the entries of a year, of a thousand keys."""
    engine = a_ledger(folder)
    store, began = a_real_store(engine), datetime.now(UTC) - timedelta(days=DAYS)
    for first in range(0, ENTRIES, BATCH):
        entries = []
        for number in range(first, first + BATCH):
            moment = began + timedelta(days=DAYS) * (number / ENTRIES)
            entry = a_real_entry(number % 997, key=f"key_{number % KEYS:020x}", started_at=moment.timestamp())
            exchange_id = id_at(moment, number)
            entries.append(replace(entry, exchange_id=exchange_id, entry_id=f"{exchange_id}/0"))
        assert len(store.settle(arriving(*entries, node="node-a", seq=(1 << 40) + 1 + first)).inserted) == BATCH
    engine.dispose()


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_a_million_entries(tmp_path: Path, postgres_cluster: Path) -> None:
    began = time.monotonic()
    fill(tmp_path)
    filled_s = time.monotonic() - began
    with own_server(postgres_cluster, fsync="on", shared_buffers="256MB", max_wal_size="1GB") as server:
        url = server.url(server.new_database())
        command = ["migrate", "--from", f"sqlite:{tmp_path}/ledger.db", "--to", url, "--json"]
        for run in ("first", "second"):
            began = time.monotonic()
            with (tmp_path / "out").open("wb") as out:
                child = os.posix_spawn(
                    sys.executable, [sys.executable, *COMMAND, *command], os.environ,
                    file_actions=[(os.POSIX_SPAWN_DUP2, out.fileno(), 1)],
                )  # fmt: skip
                _, status, used = os.wait4(child, 0)
            print(
                f"\n{run} run: {ENTRIES:,} entries ({filled_s:.0f} s to settle), {time.monotonic() - began:.0f} s, "
                f"{used.ru_utime + used.ru_stime:.0f} CPU-s, at most {used.ru_maxrss >> 10} MiB"
            )
            assert status == 0
            moved = json.loads((tmp_path / "out").read_text())
            assert (moved["rows"]["ledger_entries"], moved["faults"]) == (ENTRIES, {})
            assert used.ru_maxrss << 10 < BYTES_MAX
        assert server.execute("SELECT count(*) FROM ledger_entries_default", database=url.rpartition("/")[2]) == [(0,)]
