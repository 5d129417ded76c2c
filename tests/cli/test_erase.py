"""`erase`: a value is forgotten, its usage stays; and nothing that is kept names it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import insert, select

from proxy.billing.dimensions import hashed
from proxy.cli import NOT_FOUND
from proxy.ledger.dimensions.erasure import EXPORT, _traces
from proxy.ledger.dimensions.values import DimensionValue, DimensionValues
from proxy.ledger.schema.tables import (
    acts,
    archives,
    dimension_daily,
    dimension_values,
    exchange_dimensions,
    ledger_entries,
    sinks,
)
from tests.cli.commands import CONFIG, Commands, Terminal
from tests.ledger.entries import add_up, an_entry, id_at
from tests.support.ledger_tables import read_balances

pytestmark = pytest.mark.io

ALICE = "alice@example.com"
OCTOBER, NOVEMBER = datetime(2026, 10, 20, tzinfo=UTC), datetime(2026, 11, 20, tzinfo=UTC)
HOOK = {"kind": "webhook", "url": "http://127.0.0.1:1/hook", "secret": "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}
METER = {"kind": "openmeter", "url": "http://127.0.0.1:1", "secret": "k" * 20}


@pytest.fixture
def ids(run: Commands) -> dict[str, str]:
    """Value ids of values that were used in two months; the last exchange is not added up yet."""
    wanted = [
        DimensionValue("proj_default", "end_user", ALICE),
        DimensionValue("proj_default", "end_user", "bob"),
        DimensionValue("proj_default", "tag:team", "red"),
    ]
    ids = run.ledger(lambda store: DimensionValues(store.engine).ids(wanted, lambda _: True))
    by_value = {value.value: value_id for value, value_id in ids.items()}
    for number, moment, value in ((1, OCTOBER, ALICE), (2, OCTOBER, "bob"), (3, NOVEMBER, ALICE), (4, NOVEMBER, ALICE)):
        details = {"dimensions": {"end_user": by_value[value], "tag:team": by_value["red"]}}
        run.settle(an_entry(exchange=id_at(moment, number), started_at=moment.timestamp(), details=details))
        if number == 3:
            run.ledger(lambda store: add_up(store.engine))
    return by_value


def everything(run: Commands) -> Any:
    """What erasing may not change."""
    tables = (ledger_entries, exchange_dimensions, dimension_daily)
    return [run.execute(select(table)) for table in tables], run.ledger(lambda store: read_balances(store.engine))


def test_a_value_is_forgotten_and_all_else_stays(run: Commands, ids: dict[str, str]) -> None:
    before = everything(run)
    (erased,) = run("erase", "--end-user", f" {ALICE} ", "--yes")
    assert erased == {
        "dimension": "end_user", "projects": ["proj_default"], "value_ids": [ids[ALICE]], "exchanges": 3,
        "entries_by_month": {"2026-10": 1, "2026-11": 2}, "archives": [], "sinks": [], "exports": [],
    }  # fmt: skip
    assert everything(run) == before
    assert run.execute(select(dimension_values.c.value).order_by(dimension_values.c.value)) == [("bob",), ("red",)]
    assert ALICE not in run.out + run.err
    assert ALICE not in str(run.execute(select(acts)))
    *_, act = run("audit", "--json")
    assert (act["action"], act["target"], act["result"]) == ("dimension.erase", ids[ALICE], "done")
    assert run("erase", "--end-user", ALICE, "--yes", code=NOT_FOUND) == []
    assert ALICE not in run.err


def test_a_tag_of_one_project(run: Commands, ids: dict[str, str]) -> None:
    run("accounts", "create-project", "other", "--organization", "default")
    assert "no team has this value" in run.refused("erase", "--tag", "team=red", "--project", "other", "--yes")
    (erased,) = run("erase", "--tag", "TEAM=red", "--project", "default", "--yes")
    assert (erased["dimension"], erased["value_ids"], erased["exchanges"]) == ("tag:team", [ids["red"]], 4)


def test_it_asks_first(run: Commands, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    said = run.refused("erase", "--end-user", ALICE)
    assert "Erase this end user of 3 exchanges? This cannot be undone." in said
    assert ids[ALICE] in run.ledger(lambda store: DimensionValues(store.engine).names(ids.values()))
    assert run("audit", "--json") == []


def test_a_hashed_end_user_is_found(run: Commands) -> None:
    pepper = run.ledger(lambda store: store.pepper())
    value = DimensionValue("proj_default", "end_user", hashed(ALICE, pepper))
    run.ledger(lambda store: DimensionValues(store.engine).ids([value], lambda _: True))
    (erased,) = run("erase", "--end-user", ALICE, "--yes")
    assert (erased["exchanges"], erased["entries_by_month"]) == (0, {})
    assert run.execute(select(dimension_values)) == []


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("--end-user", " "), "--end-user: is empty"),
        (("--tag", "red="), "--tag: is empty"),
        (("--tag", "a b=red"), "--tag: is not NAME=VALUE"),
        (("--session", "a\x00b"), "cannot be printed"),
        ((), "one of the arguments --end-user --session --run --tag is required"),
        (("--session", "s", "--run", "r"), "not allowed with"),
        (("--run", "r", "--project", "nobody"), "nobody"),
        (("--run", "r"), "no run has this value"),
    ],
)
def test_wrong_values_are_refused(run: Commands, typed: tuple[str, ...], said: str) -> None:
    assert said in run.refused("erase", *typed, "--yes")


def test_what_has_the_id_is_named(run: Commands, ids: dict[str, str]) -> None:
    run.configure({**CONFIG, "allow_literal_secrets": True, "sinks": {"hook": HOOK, "meter": METER, "late": HOOK}})
    now = datetime.now(UTC).timestamp() + 60
    row = {"entry_id": "", "sent": 1, "claimed_until": 0.0, "failures": 0, "next_at": 0.0}
    for name, settled_at in (("hook", now), ("meter", now), ("late", 1.0), ("removed", now)):
        run.execute(insert(sinks).values(name=name, settled_at=settled_at, **row))
    typed = ["export", "--with-dimension-values", "--output", "all.csv"]
    for at in (1.0, now):
        act = {"act_id": f"{at}", "at": at, "actor": "ben", "via": "cli", "action": EXPORT, "details": {"typed": typed}}
        run.execute(insert(acts).values(**act, result="done"))
    (erased,) = run("erase", "--end-user", ALICE, "--yes")
    assert erased["sinks"] == ["hook", "removed"]
    (export,) = erased["exports"]
    assert export.endswith(" by ben: export --with-dimension-values --output all.csv")


def test_an_archive_was_sent_to_every_sink(run: Commands, ids: dict[str, str]) -> None:
    row = {"entry_id": "", "sent": 1, "claimed_until": 0.0, "failures": 0, "next_at": 0.0}
    run.execute(insert(sinks).values(name="late", settled_at=1.0, **row))
    done = {"statements_until": "2026-10", "entries": 2, "sha256": "", "archived_at": 1.0, "archived_by": "ben"}
    run.execute(insert(archives).values(month="2026-10", file="entries-2026-10.parquet", **done))
    traces = run.ledger(lambda store: _traces(store.engine, [ids[ALICE]]))
    assert (traces.archives, traces.sinks) == (["entries-2026-10.parquet"], ["late"])
