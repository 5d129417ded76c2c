"""`archive`, from the command line: a month leaves the ledger, and its statement stays."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from proxy.billing.settlement import entry
from proxy.cli import main
from proxy.ledger.settling.account_sums import add_up
from proxy.ledger.settling.store import Arrival
from tests.cli.commands import CONFIG, Commands
from tests.ledger.entries import id_at
from tests.ledger.priced_entries import a_real_record

pytestmark = pytest.mark.io

pytest.importorskip("pyarrow")

LAST = datetime.now(UTC).replace(day=1, hour=12) - timedelta(days=1)
OLD = LAST.replace(day=1) - timedelta(days=1)
MONTH, NEXT = f"{OLD:%Y-%m}", f"{LAST:%Y-%m}"


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    """A key has used something two months ago and last month."""
    file = tmp_path / "tokenweir.yaml"
    file.write_text(yaml.safe_dump(CONFIG))
    run = Commands(file, capsys)
    key = run("keys", "create", "--alias", "anna")[0]["key_id"]
    moments = [OLD, OLD, LAST]
    entries = []
    for number, moment in enumerate(moments):
        record = a_real_record(number, key=key, started_at=moment.timestamp())
        entries.append(entry(replace(record, opened=replace(record.opened, exchange_id=id_at(moment, number)))))
    run.ledger(lambda store: store.ledger.settle([Arrival(one) for one in entries]))
    run.ledger(lambda store: add_up(store.engine))
    run.entries = entries  # type: ignore[attr-defined]
    return run


def test_a_month_is_archived(run: Commands, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["archive", "--config", str(run.config), "--before", NEXT, "--to", str(tmp_path)]
    assert main(typed) == 1
    assert "no month is closed" in capsys.readouterr().err
    run("periods", "close", NEXT)
    statement = run("statement", "--key", "anna", "--month", MONTH, "--format", "json")
    assert main([*typed, "--dry-run"]) == 0
    assert capsys.readouterr().out == f"tokenweir: {MONTH} would be archived\n"
    assert main(typed) == 0
    file = tmp_path / f"entries-{MONTH}.parquet"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert capsys.readouterr().out.splitlines()[0] == (
        f"tokenweir: {MONTH}: 2 entries are in {file.name}, SHA-256 {digest}"
    )
    assert main(typed) == 0
    assert "archived already" in capsys.readouterr().out

    assert run("statement", "--key", "anna", "--month", MONTH, "--format", "json") == statement
    archive = run("periods", "list")[0]["archive"]
    assert (archive["file"], archive["sha256"], archive["entries"]) == (file.name, digest, 2)
    assert main(["reconcile", "--config", str(run.config)]) == 0
    capsys.readouterr()
    for asked in (["receipt"], ["adjust", "--charge", "0", "--reason", "goodwill"]):
        gone = run.entries[0].exchange_id  # type: ignore[attr-defined]
        assert main([asked[0], "--config", str(run.config), gone, *asked[1:]]) == 1
        assert file.name in capsys.readouterr().err
    assert main(["export", "--config", str(run.config), "--format", "beancount"]) == 0
    out, err = capsys.readouterr()
    assert (out.count("exchange:"), out.count("balance")) == (1, 0)
    assert f"until {MONTH} are archived" in err
    acts = [(one["action"], one["result"]) for one in run("audit", "--json")]
    assert ("archive", "refused") in acts
    assert ("archive", "done") in acts


def test_a_folder_that_is_not_there_is_named(run: Commands, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = str(tmp_path / "gone")
    assert main(["archive", "--config", str(run.config), "--before", NEXT, "--to", gone]) == 1
    assert f"--to: {gone} is not a folder" in capsys.readouterr().err
