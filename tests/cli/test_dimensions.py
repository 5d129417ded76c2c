"""Dimensions in commands: `usage`, filters of `ledger`, and exports."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

from proxy.billing.dimensions import OVERFLOW, hashed
from proxy.billing.entries import LedgerEntry
from proxy.ledger.dimensions.sums import add_up
from proxy.ledger.dimensions.values import DimensionValues
from proxy.ledger.settling.store import Arrival
from proxy.reports.usage import id_from
from tests.cli.commands import CONFIG, Commands, on_a_terminal
from tests.ledger.dimensions.filled import ids_of, with_dimensions
from tests.ledger.priced_entries import a_real_entry

pytestmark = pytest.mark.io

NOW = datetime.now(UTC).timestamp()


def an_entry_now(number: int, **differences: Any) -> LedgerEntry:
    exchange_id = f"{id_from(NOW)}7{number:03x}-8000-{number:012x}"
    entry = a_real_entry(number, started_at=NOW, **differences)
    return replace(entry, exchange_id=exchange_id, entry_id=f"entry-{number}")


@pytest.fixture
def run(run: Commands) -> Commands:
    """Two exchanges of Alice, one of Bob with a tag, one without an id, one of nobody."""
    (key,) = run("keys", "create", "--alias", "app")
    alice = run.ledger(lambda store: ids_of(store.engine, end_user="alice"))
    bob = run.ledger(lambda store: ids_of(store.engine, end_user="bob", tag_team="red"))
    has = [alice, bob, alice, {"end_user": OVERFLOW}, {}]
    every = [with_dimensions(an_entry_now(number, key=key["key_id"]), of) for number, of in enumerate(has)]
    run.settle(*every[:2])
    run.ledger(lambda store: add_up(store.engine))
    run.settle(*every[2:])
    return run


def by_name(rows: list[dict[str, Any]], name: str) -> dict[str | None, int]:
    """Requests by the value of a dimension, without the total."""
    return {row[name] and (row[name]["value"] or row[name]["value_id"]): row["requests"] for row in rows if name in row}


def test_rows_add_up_to_the_total(run: Commands) -> None:
    *rows, total = run("usage", "--by", "end_user")
    assert by_name(rows, "end_user") == {"alice": 2, "bob": 1, OVERFLOW: 1, None: 1}
    assert [row["charge_usd"] for row in rows] == sorted((row["charge_usd"] for row in rows), key=Decimal, reverse=True)
    for name in ("requests", "prompt_tokens", "charge_usd", "cost_usd"):
        assert sum(Decimal(row[name]) for row in rows) == Decimal(total[name])
    *few, rest, same = run("usage", "--by", "end_user", "--by", "key", "--limit", "2")
    assert (len(few), same, few[0]["key"], rest["left_out"]) == (2, total, "app", True)
    assert sum(Decimal(row["charge_usd"]) for row in (*few, rest)) == Decimal(total["charge_usd"])
    *days, whole = run("usage", "--by", "tag:team", "--daily", "--since", "2d")
    assert (by_name(days, "tag:team"), whole) == ({"red": 1, None: 4}, total)
    assert {row["day"] for row in days} == {f"{datetime.fromtimestamp(NOW, UTC):%Y-%m-%d}"}


def test_days_are_those_of_a_time_zone(run: Commands) -> None:
    ahead = f"{datetime.fromtimestamp(NOW, ZoneInfo('Pacific/Kiritimati')):%Y-%m-%d}"
    options = ("--time-zone", "Pacific/Kiritimati", "--since", ahead)
    day, total = run("usage", "--daily", *options)
    assert (day["day"], day["requests"], total["requests"]) == (ahead, 5, 5)
    *_, total = run("usage", "--by", "end_user", *options)
    assert total["requests"] == 5
    assert run("usage", "--time-zone", "Pacific/Kiritimati", "--until", ahead)[-1]["requests"] == 0
    assert "not a time zone: 'Berlin'" in run.refused("usage", "--time-zone", "Berlin")
    assert run.refused("usage", "--since", "soon").startswith(
        "tokenweir usage: error: argument --since: not a time: 'soon'"
    )


def test_filters(run: Commands) -> None:
    (total,) = run("usage", "--end-user", "alice", "--key", "app", "--project", "default", "--model", "tera-large")
    assert total["requests"] == 2
    assert run("usage", "--tag", "team=red", "--by", "end_user")[0]["end_user"]["value"] == "bob"
    assert run("usage", "--until", "2026-01-01", "--since", "2025-01-01")[-1]["requests"] == 0
    assert run.refused("usage", "--end-user", "nobody") == "tokenweir: --end-user: the ledger has no 'nobody'"
    assert "cannot be combined" in run.refused("usage", "--by", "end_user", "--by", "run")
    assert "tag:NAME, not 'colour'" in run.refused("usage", "--by", "colour")
    assert "--tag: is not NAME=VALUE" in run.refused("usage", "--tag", "red")


def test_end_users_that_are_stored_as_a_hash_are_found_by_what_clients_send(run: Commands) -> None:
    def settled(store: Any) -> None:
        carol = ids_of(store.engine, end_user=hashed("carol", store.pepper()))
        entry = with_dimensions(an_entry_now(9), carol)
        store.ledger.settle([Arrival(entry)])

    run.ledger(settled)
    assert "no 'carol'" in run.refused("usage", "--end-user", "carol")
    run.configure(CONFIG | {"dimensions": {"hash_end_users": True}})
    assert run("usage", "--end-user", "carol")[-1]["requests"] == 1
    assert run("usage", "--end-user", "bob")[-1]["requests"] == 1


def test_a_terminal_shows_a_table(run: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = run.ledger(lambda store: ids_of(store.engine, end_user="bob"))
    run.ledger(lambda store: DimensionValues(store.engine).erase(ids.values()))
    on_a_terminal(monkeypatch, 120)
    run("usage", "--by", "end_user")
    lines = run.out.splitlines()
    assert lines[0].split() == ["END", "USER", "REQUESTS", "PROMPT", "OUTPUT", "CHARGE", "USD", "COST", "USD"]
    names = [line[:30].strip() for line in lines[1:]]
    assert sorted(names[:-1]) == sorted(["alice", f"(erased {ids['end_user']})", "(other)", "(none)"])
    assert names[-1] == "total"
    for name in set(names) - {"total", "(none)"}:
        assert run("usage", "--end-user", name, "--json")[0]["requests"] == 1 + (name == "alice")
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("columns", [80, 100])
def test_no_amount_is_cut(run: Commands, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    run("usage", "--json")
    charge = json.loads(run.out)["charge_usd"]
    on_a_terminal(monkeypatch, columns)
    for groups in (("end_user",), ("tag:team", "model"), ("end_user", "model", "key")):
        run("usage", *(word for name in groups for word in ("--by", name)), "--daily")
        header, *_, total = run.out.splitlines()
        assert "CHARGE USD" in header
        assert charge in total.split()


def test_entries_show_who_used_them(run: Commands) -> None:
    *_, first, second = [one for one in run("ledger", "--json", "--explain") if one["dimensions"]][:3]
    bob = second if "tag:team" in second["dimensions"] else first
    value_id = bob["dimensions"]["end_user"]["value_id"]
    assert bob["dimensions"]["end_user"]["value"] == "bob"
    assert bob["details"]["dimensions"]["end_user"] == value_id
    assert [one["exchange_id"] for one in run("ledger", "--json", "--end-user", "bob")] == [bob["exchange_id"]]
    assert len(run("ledger", "--json", "--end-user", "alice")) == 2
    assert run("ledger", "--json", "--end-user", "alice", "--tag", "team=red") == []
    run("ledger", "--explain", "--tag", "team=red")
    assert f"end_user bob ({value_id}), tag:team red (v_" in run.out
    run("exchange", bob["exchange_id"])
    assert f"used by     end_user bob ({value_id}), tag:team red (v_" in run.out
    assert run("exchange", bob["exchange_id"], "--json")[0]["dimensions"] == bob["dimensions"]


# -- files -------------------------------------------------------------------------------------------------------


def exported(run: Commands, tmp_path: Path, *arguments: str) -> list[dict[str, str]]:
    file = tmp_path / "entries.csv"
    run("export", "--output", str(file), *arguments)
    return list(csv.DictReader(io.StringIO(file.read_text(), newline="")))


def test_an_export_has_ids_and_with_values_is_in_the_audit_log(run: Commands, tmp_path: Path) -> None:
    """Corrections have the dimensions of their exchange."""
    (bob,) = run("ledger", "--json", "--end-user", "bob")
    run("adjust", bob["exchange_id"], "--charge-usd", "1", "--reason", "so")
    ids = bob["details"]["dimensions"]
    rows = [row for row in exported(run, tmp_path) if row["exchange_id"] == bob["exchange_id"]]
    assert [row["kind"] for row in rows] == ["usage", "adjustment"]
    for row in rows:
        assert (row["end_user"], row["session"]) == (ids["end_user"], "")
        assert json.loads(row["tags"]) == {"team": ids["tag:team"]}
    assert [row["action"] for row in run("audit", "--json")] == ["key.create", "adjust"]
    rows = exported(run, tmp_path, "--with-dimension-values")
    assert Counter(row["end_user"] for row in rows) == {"alice": 2, "bob": 2, OVERFLOW: 1, "": 1}
    assert [json.loads(row["tags"]) for row in rows if row["tags"]] == [{"team": "red"}] * 2
    (last,) = run("audit", "--json")[2:]
    assert (last["action"], last["details"]["typed"][:2], last["result"]) == ("export", ["export", "--output"], "done")
    (erased,) = run("erase", "--end-user", "bob", "--yes")
    assert "--with-dimension-values" in erased["exports"][0]
    rows = exported(run, tmp_path, "--with-dimension-values")
    assert Counter(row["end_user"] for row in rows)[ids["end_user"]] == 2
    assert "no dimensions" in run.refused("export", "--format", "beancount", "--with-dimension-values")


def test_focus_has_dimensions_as_tags(run: Commands, tmp_path: Path) -> None:
    run("keys", "update", "app", "--tag", "team:ops", "--tag", "prod")
    rows = exported(run, tmp_path, "--format", "focus", "--with-dimension-values")
    tags = [json.loads(row["Tags"]) for row in rows]
    of_key = {"team": "ops", "prod": True}
    assert {"tokenweir:end_user": "alice", **of_key} in tags
    assert {"tokenweir:end_user": "bob", **of_key} in tags
    run("keys", "update", "app", "--tag", "prod")
    rows = exported(run, tmp_path, "--format", "focus", "--with-dimension-values")
    assert {"tokenweir:end_user": "bob", "team": "red", "prod": True} in [json.loads(row["Tags"]) for row in rows]


def test_a_statement_by_end_user_is_in_the_audit_log(run: Commands) -> None:
    month = f"{datetime.fromtimestamp(NOW, UTC):%Y-%m}"
    arguments = ("statement", "--key", "app", "--month", month, "--by", "end_user")
    (shown,) = run(*arguments, "--format", "json")
    rows = shown["by_value"]["rows"]
    assert {row["value_id"] and (row["value"] or row["value_id"]): row["requests"] for row in rows} == {
        "alice": 2, "bob": 1, OVERFLOW: 1, None: 1,
    }  # fmt: skip
    assert sum(Decimal(row["charge_usd"]) for row in rows) == Decimal(shown["usage_usd"])
    assert [row["action"] for row in run("audit", "--json")][-1] == "export"
    assert "--by: cannot be combined with --format csv" in run.refused(*arguments, "--format", "csv")
