"""`tokenweir journal replay`: what the ledger has lost is settled again from the journals, beside a running proxy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from proxy.journal.journal import Journal
from tests.cli.commands import Commands
from tests.journal.records import ROOMY, opened, record

pytestmark = pytest.mark.io


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """Of a proxy that runs: three exchanges that the ledger is said to have."""
    made = Journal.open(tmp_path / "data" / "journal", bytes_max=ROOMY, keep_settled_s=60.0)
    for number in (1, 2, 3):
        began = opened(number, started_at=time.time())
        made.begin(began)
        made.finish(record(began))
    made.settled([one.seq for one in made.pending(10)])
    yield made
    made.close()


def entries(run: Commands) -> int:
    return len(run("ledger", "--json"))


def test_what_is_lost_is_settled_once(run: Commands, journal: Journal) -> None:
    found = {"journal": str(run.config.parent / "data" / "journal"), "node": journal.node.node_id}
    assert run("journal", "replay", "--dry-run") == [{**found, "lost": 3, "dry_run": True}]
    assert run("journal", "replay") == [{**found, "lost": 3, "settled": 3, "repeated": 0, "dead_letters": 0}]
    assert entries(run) == 3
    run.execute(text("DELETE FROM ledger_entries WHERE journal_seq % 3 = 0"))
    assert [one["lost"] for one in run("journal", "replay")] == [1]
    assert entries(run) == 3
    assert run("journal", "replay") == [{**found, "lost": 0}]
    assert [one["action"] for one in run("audit", "--json")] == ["journal.replay"] * 3
