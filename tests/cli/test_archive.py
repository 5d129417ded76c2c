"""`archive`, from the command line: a month leaves the ledger, and its statement stays."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from proxy.billing.settlement import entry
from tests.cli.commands import Commands
from tests.ledger.entries import add_up, id_at
from tests.ledger.priced_entries import a_real_record

pytestmark = pytest.mark.io

pytest.importorskip("pyarrow")

LAST = datetime.now(UTC).replace(day=1, hour=12) - timedelta(days=1)
OLD = LAST.replace(day=1) - timedelta(days=1)
MONTH, NEXT = f"{OLD:%Y-%m}", f"{LAST:%Y-%m}"


@pytest.fixture
def run(run: Commands) -> Commands:
    """A key has used something two months ago and last month."""
    key = run("keys", "create", "--alias", "anna")[0]["key_id"]
    entries = []
    for number, moment in enumerate([OLD, OLD, LAST]):
        record = a_real_record(number, key=key, started_at=moment.timestamp())
        entries.append(entry(replace(record, opened=replace(record.opened, exchange_id=id_at(moment, number)))))
    run.settle(*entries)
    run.ledger(lambda store: add_up(store.engine))
    return run


def test_a_month_is_archived(run: Commands, tmp_path: Path) -> None:
    typed = ("archive", "--before", NEXT, "--to", str(tmp_path))
    assert "no month is closed" in run.refused(*typed)
    run("periods", "close", NEXT)
    statement = run("statement", "--key", "anna", "--month", MONTH, "--format", "json")
    run(*typed, "--dry-run")
    assert run.out == f"tokenweir: {MONTH} would be archived\n"
    assert run(*typed, "--dry-run", "--json") == [{"month": MONTH, "dry_run": True}]
    run(*typed)
    file = tmp_path / f"entries-{MONTH}.parquet"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert run.out.splitlines()[0] == f"tokenweir: {MONTH}: 2 entries are in {file.name}, SHA-256 {digest}"
    run(*typed)
    assert "archived already" in run.out

    assert run("statement", "--key", "anna", "--month", MONTH, "--format", "json") == statement
    archive = run("periods", "list")[0]["archive"]
    assert (archive["file"], archive["sha256"], archive["entries"]) == (file.name, digest, 2)
    run("reconcile")
    gone = run.entries[0].exchange_id
    for command, *options in (["receipt"], ["adjust", "--charge", "0", "--reason", "goodwill"]):
        assert file.name in run.refused(command, gone, *options)
    run("export", "--format", "beancount")
    assert (run.out.count("exchange:"), run.out.count("balance")) == (1, 0)
    assert f"until {MONTH} are archived" in run.err
    span = ("--since", f"{MONTH}-01", "--until", f"{NEXT}-01")
    assert run("usage", *span)[-1]["requests"] == 2
    assert f"until {MONTH} are archived" in run.refused("usage", *span, "--time-zone", "Europe/Berlin")
    monthly = ("statement", "--key", "anna", "--time-zone", "Europe/Berlin", "--month")
    assert "entries of its statements are archived" in run.refused(*monthly, MONTH)
    acts = [(one["action"], one["result"]) for one in run("audit", "--json")]
    assert ("archive", "refused") in acts
    assert ("archive", "done") in acts


def test_a_program_gets_an_object_for_each_file(run: Commands, tmp_path: Path) -> None:
    run("periods", "close", NEXT)
    typed = ("archive", "--before", NEXT, "--to", str(tmp_path), "--json")
    [archived, *logs] = run(*typed)
    file = tmp_path / f"entries-{MONTH}.parquet"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert archived == {"month": MONTH, "file": file.name, "sha256": digest, "entries": 2}
    assert [set(one) for one in logs] == [{"file", "rows"}] * len(logs)
    assert (run(*typed), run.out) == ([], "")


def test_a_folder_that_is_not_there_is_named(run: Commands, tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    assert f"--to: {gone} is not a folder" in run.refused("archive", "--before", NEXT, "--to", gone)
