"""`periods`, `receipt` and `verify`, from the command line: a customer checks a bill with files alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from proxy.cli import main
from proxy.foundation.tasks import Tasks
from proxy.journal.journal import Journal
from proxy.ledger.schema.tables import dead_letters
from proxy.runtime.machine import unsettled as closing_by_itself
from proxy.runtime.machine.data_folder import DataFolder
from proxy.runtime.machine.ledger_stores import LedgerStores
from proxy.settings import load
from tests.cli.commands import CONFIG, Commands
from tests.journal.records import opened, record
from tests.ledger.priced_entries import a_real_entry
from tests.support.waiting import until

pytestmark = pytest.mark.io

TODAY = datetime.now(UTC).date()
LAST = TODAY.replace(day=1) - timedelta(days=1)
MONTH, THIS = f"{LAST:%Y-%m}", f"{TODAY:%Y-%m}"
OWNERS = (("--key", "anna"), ("--account", "proj_default"), ("--account", "org_default"))


def noon(day: date) -> float:
    """Unix seconds."""
    return datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp()


@pytest.fixture
def run(run: Commands) -> Commands:
    """Two keys have used something last month, and one of them today."""
    keys = [run("keys", "create", "--alias", alias)[0]["key_id"] for alias in ("anna", "bert")]
    entries = [a_real_entry(number, key=keys[number % 2], started_at=noon(LAST)) for number in range(7)]
    entries.append(a_real_entry(8, key=keys[0], started_at=noon(TODAY)))
    run.settle(*entries)
    return run


@pytest.fixture
def files(run: Commands, tmp_path: Path) -> Callable[..., list[str]]:
    """The closed month's statement of an owner, and its entries."""
    run("periods", "close", MONTH)

    def made(*owner: str) -> list[str]:
        statement, lines = tmp_path / "statement.json", tmp_path / "entries.jsonl"
        whose = ("statement", *owner, "--month", MONTH, "--format", "json")
        run(*whose, "--output", str(statement), "--entries", str(lines))
        return [str(statement), "--entries", str(lines)]

    return made


def changed(file: str, change: Callable[[dict[str, Any]], None], line: int = 0) -> None:
    """Write a JSON line of a file again, changed."""
    lines = Path(file).read_text().splitlines()
    content = json.loads(lines[line])
    change(content)
    lines[line] = json.dumps(content)
    Path(file).write_text("\n".join(lines) + "\n")


def test_a_statement_is_checked_from_files(files: Any, capsys: Any) -> None:
    for owner, entries in zip(OWNERS, (4, 7, 7), strict=True):
        typed = files(*owner)
        assert main(["verify", *typed]) == 0
        out = capsys.readouterr().out
        assert "adds up" in out
        assert f"the digest of its {entries} entries" in out
        assert main(["verify", *typed, "--json"]) == 0
        (proven,) = map(json.loads, capsys.readouterr().out.splitlines())
        statement = json.loads(Path(typed[0]).read_text())
        digest = statement["digest"]
        assert proven == {
            "object": "statement", "number": statement["number"], "month": MONTH, "scope_id": statement["scope_id"],
            "digest": digest, "entries": entries,
        }  # fmt: skip
        assert main(["verify", typed[0], "--digest", digest]) == 0
        assert main(["verify", typed[0], "--digest", "0" * 64]) == 1


FORGERIES: list[tuple[int, dict[str, object], str]] = [
    (0, {"usage_usd": "1"}, "usage_usd"),
    (0, {"closing_balance_usd": "1"}, "closing_balance_usd"),
    (0, {"digest": "ab" * 32}, "digest"),
    (2, {"charge_nusd": "0.000000001"}, "digest"),
    (2, {"prompt_tokens": 1}, "digest"),
    (2, {"key_id": "another"}, "digest"),
]


def test_a_forged_file_is_found(files: Any, capsys: Any) -> None:
    typed = files("--key", "anna")
    for which, forgery, words in FORGERIES:
        sound = Path(typed[which]).read_text()
        changed(typed[which], lambda one, forgery=forgery: one.update(forgery))  # type: ignore[misc]
        assert main(["verify", *typed]) == 1, forgery
        assert words in capsys.readouterr().err
        Path(typed[which]).write_text(sound)


def test_an_entry_that_is_left_out_is_found(files: Any, capsys: Any) -> None:
    typed = files("--account", "org_default")
    lines = Path(typed[2]).read_text().splitlines(keepends=True)
    Path(typed[2]).write_text("".join(lines[1:]))
    assert main(["verify", *typed]) == 1
    assert "entries: stated as 7, is 6" in capsys.readouterr().err


def test_a_receipt_leads_to_every_statement_above_it(run: Commands, files: Any, tmp_path: Path, capsys: Any) -> None:
    exchange_id = run.entries[2].exchange_id
    file = tmp_path / "receipt.json"
    (receipt,) = run("receipt", exchange_id)
    file.write_text(json.dumps(receipt))
    for owner in OWNERS:
        statement = files(*owner)[0]
        assert main(["verify", str(file), "--statement", statement]) == 0
        assert f"{exchange_id} is in statement {MONTH}-" in capsys.readouterr().out
        assert main(["verify", str(file), "--statement", statement, "--json"]) == 0
        (proven,) = map(json.loads, capsys.readouterr().out.splitlines())
        assert (proven["exchange_id"], proven["number"]) == (exchange_id, f"{MONTH}-{proven['scope_id']}")
    assert main(["verify", str(file), "--json"]) == 0
    every = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {(one["object"], one["number"], one["month"]) for one in every} == {("receipt", None, MONTH)}
    assert len({one["scope_id"] for one in every}) == len(every) == 4
    (period,) = run("periods", "list")
    assert main(["verify", str(file), "--digest", period["digest"]]) == 0
    assert main(["verify", str(file), "--statement", files("--key", "bert")[0]]) == 1

    changed(str(file), lambda one: one["months"][0]["lines"][0]["line"].update(charge_nusd="0"))
    assert main(["verify", str(file)]) == 1
    assert "does not lead to the digest" in capsys.readouterr().err


def test_a_month_that_is_open_has_no_receipt_and_no_entries(run: Commands, tmp_path: Path) -> None:
    (closed,) = run("periods", "close", MONTH, "--json")
    assert (closed["month"], run("periods", "list")) == (MONTH, [closed])
    assert run("periods", "close", MONTH, "--json") == []
    assert "is not closed" in run.refused("receipt", run.entries[7].exchange_id)
    assert "no such exchange" in run.refused("receipt", "0192")
    entries = str(tmp_path / "entries")
    assert "is not closed" in run.refused("statement", "--key", "anna", "--month", THIS, "--entries", entries)
    assert f"{THIS}: is not over" in run.refused("periods", "close", THIS)
    assert "there is no folder" in run.refused("export", "--output", str(tmp_path / "typed-wrong" / "entries.csv"))
    assert "expected YYYY-MM" in run.refused("periods", "close", "november")


def test_what_is_not_settled_is_named_and_waited_for(run: Commands) -> None:
    folder = DataFolder(load(run.config, {}).data_dir)
    journal = Journal.open(folder.journal, bytes_max=1 << 30)
    before = opened(1, exchange_id="01900000-0000-7000-8000-000000000001")
    after = opened(2, exchange_id="ff900000-0000-7000-8000-000000000001")
    try:
        for one in (before, after):
            journal.begin(one)
        journal.sync()
        run("periods", "close", MONTH, code=1)
        assert "journal: 1: 01900000-0000-7000-8000-000000000001" in run.err
        assert "--wait" in run.err
    finally:
        journal.close()
    with_letter = {"id": "ab" * 32, "reason": "unreadable", "payload": "{}", "first_seen": 1.0, "last_seen": 1.0}
    row = {**with_letter, "times_seen": 1, "state": "open", "state_at": 1.0}
    run.execute(insert(dead_letters).values(row))
    run("periods", "close", MONTH, code=1)
    assert "dead letter: 1: abab" in run.err
    run("periods", "close", MONTH, "--leave")
    assert "for later statements:\n  journal: 1" in run.out
    (period,) = run("periods", "list")
    assert [one["what"] for one in period["left_behind"]] == ["journal", "dead letter"]
    run("periods", "close", MONTH)
    assert "was closed already" in run.out
    acts = [one for one in run("audit", "--json") if one["action"] == "periods.close"]
    assert [(one["result"], one["target"]) for one in acts] == [
        (one, MONTH) for one in ("refused", "refused", "done", "done")
    ]


async def test_a_month_closes_by_itself_when_all_of_it_is_settled(run: Commands, monkeypatch: Any) -> None:
    monkeypatch.setattr(closing_by_itself, "CLOSE_S", 0.01)
    run.configure({**CONFIG, "billing": {"close_after_days": 0}})
    settings = load(run.config, {})
    store = LedgerStores.open(settings)
    journal = Journal.open(DataFolder(settings.data_dir).journal, bytes_max=1 << 30)
    first = opened(1, exchange_id="01900000-0000-7000-8000-000000000001")
    journal.begin(first)
    journal.sync()

    tasks = Tasks()
    tasks.start(closing_by_itself.close_months(settings, store.engine, store.ledger, asyncio.to_thread), name="periods")
    try:
        await asyncio.sleep(0.3)
        assert run("periods", "list") == []
        assert journal.finish(record(first))
        journal.settled([one.seq for one in journal.pending(1)])
        journal.sync()
        await until(lambda: any(one["issued_at"] for one in run("periods", "list")), within_s=20.0, poll_s=0.05)
        assert [(one["month"], one["closed_by"]) for one in run("periods", "list")] == [
            (MONTH, "billing.close_after_days")
        ]
    finally:
        await tasks.stop()
        journal.close()
        store.close()
