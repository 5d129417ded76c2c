"""`adjust`, `rerate`, `dead-letters` and `reconcile`, on a ledger with what a proxy leaves there."""

from __future__ import annotations

import os
import re
import sys
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import select, update

from proxy.billing.pricing.prices import configured
from proxy.billing.record import Rates
from proxy.cli.common import operator
from proxy.journal.frames import record_payload
from proxy.ledger.schema.tables import balances, dead_letters
from proxy.ledger.settling.store import DeadLetter
from tests.cli.commands import CONFIG, MODEL, Commands, Terminal, on_a_terminal
from tests.ledger.entries import stored
from tests.ledger.priced_entries import COST, FIRST, NODE, PRICE, a_real_entry, a_real_record

pytestmark = pytest.mark.io

NOW = configured(Rates(input=10**9, cached_input=10**9, output=2 * 10**9))
NAME = a_real_entry().exchange_id


@pytest.fixture
def run(run: Commands) -> Commands:
    """Three exchanges are settled there."""
    run.settle(*map(a_real_entry, range(3)), node=NODE, seq=FIRST)
    return run


def test_adjust_prints_the_entry_that_it_wrote(run: Commands) -> None:
    wanted = ("adjust", NAME, "--reason", "goodwill", "--charge-usd", "0.000001", "--completion-tokens", "40")
    (planned,) = run(*wanted, "--dry-run")
    (written,) = run(*wanted)
    assert planned == {**written, "dry_run": True}
    assert (written["kind"], written["exchange_id"], written["completion_tokens"]) == ("adjustment", NAME, -10)
    assert written["details"]["sets"] == {"completion_tokens": 40, "charge_usd": "0.000001"}
    assert run(*wanted) == []
    assert "nothing was written" in run.err
    assert run("ledger", "--json")[-1] == written
    assert len(run("ledger", "--json")) == 4
    run("ledger")
    assert run.out.splitlines()[-1].endswith("adjustment: goodwill")


def test_rerate_shows_a_person_what_it_changes(run: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ("rerate", "--model", "tera-large", "--since", "2026-01-01", "--input", "5", "--output", "5", "--dry-run")
    (total,) = run(*wanted)
    on_a_terminal(monkeypatch)
    run(*wanted, "--verbose")
    header, row, empty, *fields = run.out.splitlines()
    assert (header.split()[0], row.split()[0], empty) == ("KEY", "anna", "")
    assert max(map(len, (header, row))) <= 80
    assert dict(line.split(":", 1) for line in fields)["charge_usd"].strip() == total["charge_usd"]


def test_adjust_shows_a_person_what_it_changes(run: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_terminal(monkeypatch)
    wanted = ("adjust", NAME, "--reason", "goodwill", "--charge-usd", "0.25", "--completion-tokens", "40")
    run(*wanted, "--dry-run")
    planned = run.out.splitlines()
    assert planned[-1] == "dry run: nothing was written"
    run(*wanted)
    written = run.out.splitlines()
    assert written[:-1] == planned[:-1]
    shown = dict(re.split(r": +", line, maxsplit=1) for line in written)
    entries = run("ledger", "--json")
    first, last = next(one for one in entries if one["exchange_id"] == NAME), entries[-1]
    total = first["total_tokens"]
    assert shown == {
        "completion tokens": "50 → 40", "total tokens": f"{total} → {total - 10}",
        "charge": f"{first['charge_usd']} → 0.25 USD", "cost": shown["cost"], "by": f"{operator()}: goodwill",
        "exchange": NAME, "entry": last["entry_id"],
    }  # fmt: skip
    (again,) = run(*wanted[:-1], "30", "--yes", "--json")
    assert again["completion_tokens"] == -10


@pytest.mark.parametrize(("typed", "code"), [("n\n", 1), ("\n", 1), ("other\n", 1), ("y\n", 0), ("", 0)])
def test_a_piped_answer_counts(run: Commands, monkeypatch: pytest.MonkeyPatch, typed: str, code: int) -> None:
    run("adjust", NAME, "--reason", "goodwill", "--charge-usd", "0.25")
    read, write = os.pipe()
    os.write(write, typed.encode())
    os.close(write)
    with open(read) as answers:
        monkeypatch.setattr(sys, "stdin", answers)
        run("adjust", NAME, "--reason", "recount", "--completion-tokens", "40", code=code)
    assert (len(run("ledger", "--json")) == 4) == bool(code)


def test_every_count_can_be_set_and_every_charge_be_explained(run: Commands) -> None:
    (written,) = run("adjust", NAME, "--reason", "cached", "--cache-write-tokens", "9", "--searches", "1")
    assert written["details"]["units"] == {"cache_write_tokens": 9, "searches": 1}
    first, *_, last = run("ledger", "--json", "--explain")
    assert [one["price"] for one in first["addends"]] == ["input", "cached_input", "output", "reasoning"]
    assert last["addends"] == []
    run("ledger", "--explain")
    assert run.out.splitlines()[2].startswith(f"    {first['charge_usd']} = ")


def test_a_correction_is_explained_by_who_made_it_its_prices_and_the_new_total(run: Commands) -> None:
    price = '{"input": 1, "cached_input": 0.07, "output": 2}'
    run("rerate", "--model", "tera-large", "--since", "2026-01-01", "--price", price)
    every = run("ledger", "--json")
    first = next(one["exchange_id"] for one in every if one["kind"] == "adjustment")
    total = sum(Decimal(one["charge_usd"]) for one in every if one["exchange_id"] == first)
    run("ledger", "--explain")
    lines = run.out.splitlines()
    at = next(at for at, line in enumerate(lines) if line.endswith("adjustment: rerated"))
    assert lines[at + 1] == (
        f"    by {operator()}: rerated; input 0.13 → 1 per million; output 0.41 → 2 per million; "
        f"reasoning 0.41 → 2 per million; new total {total}"
    )
    every = run("ledger", "--json", "--explain")
    (correction,) = (one for one in every if (one["exchange_id"], one["kind"]) == (first, "adjustment"))
    assert correction["prices"] == [
        {"price": "input", "old_usd": "0.13", "new_usd": "1", "per": "per million"},
        {"price": "output", "old_usd": "0.41", "new_usd": "2", "per": "per million"},
        {"price": "reasoning", "old_usd": "0.41", "new_usd": "2", "per": "per million"},
    ]
    assert Decimal(correction["total_usd"]) == total


def test_adjust_refuses_in_one_line(run: Commands) -> None:
    refusals: list[tuple[list[str], str]] = [
        (["nobody's", "--reason", "r", "--charge-usd", "0"], "no such exchange"),
        ([NAME, "--reason", "r"], "nothing is set"),
        ([NAME, "--reason", "", "--charge-usd", "0"], "--reason: must be 1 to 500"),
        ([NAME, "--reason", "r", "--charge-usd", "-1"], "--charge-usd: must be 0 to 1000000 USD"),
        ([NAME, "--reason", "r", "--prompt-tokens", "1"], "cached_tokens"),
    ]
    for arguments, words in refusals:
        assert words in run.refused("adjust", *arguments)
    assert len(run("ledger", "--json")) == 3


def test_an_amount_set_by_hand_is_replaced_after_a_question(run: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    run("adjust", NAME, "--reason", "goodwill", "--charge-usd", "0.25")
    anew = ("adjust", NAME, "--reason", "recount", "--completion-tokens", "40")
    run(*anew, "--dry-run")
    assert run.err == (
        "tokenweir: the charge of 0.25 USD was set by an operator; it is calculated anew from the tokens\n"
    )
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    run(*anew, code=1)
    assert run.err.endswith("Replace it? [y/N] tokenweir: nothing was changed\n")
    assert len(run(*anew, "--charge-usd", "0.25")) == 1  # the same amount, by hand again
    run("adjust", NAME, "--reason", "recount", "--completion-tokens", "30", "--yes")
    assert "was set by an operator" in run.err
    assert run.err.count("\n") == 1
    run("adjust", NAME, "--reason", "recount", "--completion-tokens", "20")
    assert run.err == "", "it is no longer the one that was set by hand"


def test_rerate_to_the_prices_of_the_configuration_and_to_given_ones(run: Commands) -> None:
    whole = ("rerate", "--model", "tera-large", "--since", "2026-01-01")
    (planned,) = run(*whole, "--dry-run")
    *by_key, total = run(*whole, "--verbose")
    assert planned == {**total, "dry_run": True}
    assert (total["exchanges"], total["adjusted"], total["manually_corrected"], total["unreadable"]) == (3, 3, 0, 0)
    assert by_key == [
        {"key_id": "key-1", "key_alias": "anna"} | {name: total[name] for name in by_key[0] if name in total}
    ]
    charges = run.ledger(lambda store: sum(one.charge_nusd or 0 for one in stored(store.engine)))
    assert charges == sum(_at(NOW, number) for number in range(3))
    assert run(*whole)[0]["adjusted"] == 0
    given = ("--input", "0.13", "--cached-input", "0.07", "--output", "0.41")
    assert run(*whole, *given)[0]["adjusted"] == 3
    assert run(*whole, "--price", '{"input": 0.13, "output": 0.41, "cached_input": "0.07"}')[0]["adjusted"] == 0
    charges = run.ledger(lambda store: sum(one.charge_nusd or 0 for one in stored(store.engine)))
    assert charges == sum(a_real_entry(number).charge_nusd or 0 for number in range(3))
    assert run("reconcile", "--json")[0]["ok"]


def _at(price: Any, number: int) -> int:
    return a_real_entry(number, price=price).charge_nusd or 0


def test_rerate_looks_only_at_its_time_and_its_model(run: Commands) -> None:
    assert run("rerate", "--model", "tera-large", "--since", "2026-01-01", "--until", "2026-01-02")[0]["exchanges"] == 0
    assert run("rerate", "--model", "other", "--since", "1d", "--input", "1", "--output", "1")[0]["exchanges"] == 0


def test_rerate_refuses_in_one_line(run: Commands) -> None:
    refusals = [
        (["--model", "other"], "'other' is no longer configured"),
        (["--input", "1"], "--output: is missing"),
        (["--input", "free", "--output", "1"], "--input: must be USD per million tokens"),
        (["--price", "[1]"], "price: must be a mapping"),
        (["--price", '{"input": 1, "output": 1, "images": 2}'], "price.images: unknown field"),
        (["--price", "{}", "--input", "1"], "--price: cannot be combined with"),
        (["--since", "yesterday"], "not a time"),
    ]
    for arguments, words in refusals:
        assert words in run.refused("rerate", "--model", "tera-large", "--since", "2026-01-01", *arguments)
    assert len(run("ledger", "--json")) == 3


def test_a_conflict_shows_what_differs(run: Commands) -> None:
    entry = a_real_entry(1)
    details = {**entry.details, "note": "again"}
    other = replace(entry, charge_nusd=(entry.charge_nusd or 0) + 10**9, outcome="crashed", details=details)
    run.settle(other, node=NODE, seq=FIRST + 1)
    (letter,) = run("dead-letters", "list", "--json")
    ours, theirs = letter["differences"]["charge_usd"]
    assert letter["reason"].startswith("conflict")
    assert letter["differences"] == {
        "outcome": [entry.outcome, "crashed"], "charge_usd": [ours, theirs], "details.note": [None, "again"],
    }  # fmt: skip
    assert float(theirs) - float(ours) == pytest.approx(1)
    run("dead-letters", "list")
    assert f"\n    charge_usd: the ledger has {ours}, the record {theirs}\n" in run.out
    assert run.out.count("\n") == 5


def test_dead_letters_are_listed_retried_and_dropped(run: Commands) -> None:
    payloads = [record_payload(a_real_record(n)).decode() for n in (3, 4)] + ["{}", "[]"]
    letters = [
        DeadLetter("unreadable: X", text, node=NODE, journal_seq=FIRST + n) for n, text in enumerate(payloads, 3)
    ]
    run.ledger(lambda store: store.ledger.settle([], letters))
    listed = run("dead-letters", "list", "--json")
    assert {one["payload"] for one in listed} == set(payloads)
    assert {one["state"] for one in listed} == {"open"}
    ids = {one["payload"]: one["id"] for one in listed}
    assert run("dead-letters", "list") == []
    assert [line.split()[0] for line in run.out.splitlines()[1:]] == [one["id"][:12] for one in listed]

    (retried,) = run("dead-letters", "retry", ids[payloads[0]][:8])
    assert retried == {"id": ids[payloads[0]], "exchange_id": None, "result": "inserted"}
    (dropped,) = run("dead-letters", "drop", ids["[]"], "--reason", "noise")
    assert (dropped["id"], dropped["result"]) == (ids["[]"], "dropped")
    assert [one["id"] for one in run("dead-letters", "retry", "--all", code=1)] == [ids[payloads[1]]]
    assert run.err.startswith(f"tokenweir: {ids['{}'][:12]}: the payload still cannot be read")
    assert [one["id"] for one in run("dead-letters", "list", "--json")] == [ids["{}"]]
    run("dead-letters", "drop", ids["{}"], "--reason", "noise")
    assert run("dead-letters", "retry", "--all") == []
    run("dead-letters", "retry", ids["{}"], code=1)
    assert "is already dropped" in run.err
    kept = set(run.execute(select(dead_letters.c.state, dead_letters.c.reason)))
    assert kept == {("retried", "unreadable: X"), ("dropped", "unreadable: X; dropped: noise")}
    run("reconcile")
    assert len(run("ledger", "--json")) == 5


def test_reconcile_says_ok_or_what_differs(run: Commands) -> None:
    run("reconcile")
    lines = run.out.splitlines()
    assert lines[0].split()[:2] == ["terminal", "ok"]
    assert all(line.split("  ")[0].strip() and " ok " in line for line in lines)
    assert len(run("reconcile", "--json", "--since", "1h")) == len(lines)
    run.execute(update(balances).values(charged_nusd=balances.c.charged_nusd - 2_000))
    run("reconcile", code=1)
    assert "balances      1 differ" in run.out
    assert "    key_id: key-1, charged_usd: 0.000002" in run.out.splitlines()
    checks = {one["check"]: one for one in run("reconcile", "--json", code=1)}
    assert checks["balances"]["examples"] == [{"key_id": "key-1", "charged_usd": "0.000002"}]
    assert [name for name, one in checks.items() if not one["ok"]] == ["balances"]


def test_reconcile_counts_what_is_on_its_way(run: Commands) -> None:
    run.settle(a_real_entry(9), node=NODE, seq=FIRST + 9)
    run("reconcile")
    assert "(6 in flight)" in run.out
    run("reconcile", "--grace", "soon", code=2)
    assert "not a duration" in run.err


# -- with the prices of the configuration ------------------------------------------------------------------------


def test_the_cost_of_another_provider_is_not_ours(run: Commands) -> None:
    """The model is served by somebody else now: what it is sold for has changed, what it did cost has not."""
    moved = {
        **CONFIG,
        "providers": {"elsewhere": {"base_url": "http://127.0.0.1:1/v1"}},
        "models": {"tera-large": {**MODEL, "provider": "elsewhere"}},
    }
    run.configure(moved)
    (done,) = run("rerate", "--model", "tera-large", "--since", "2026-01-01")
    assert (done["adjusted"], done["cost_usd"]) == (3, "0")
    assert done["charge_usd"] != "0"


def test_the_same_prices_change_nothing(run: Commands) -> None:
    rates = {
        name: {"input": one.input / 1e9, "cached_input": one.cached_input / 1e9, "output": one.output / 1e9}
        for name, one in (("price", PRICE.tiers[0]), ("cost", COST.tiers[0]))
    }
    run.configure({**CONFIG, "models": {"*": {"provider": "tera", **rates}}})
    (done,) = run("rerate", "--model", "tera-large", "--since", "2026-01-01")
    assert (done["exchanges"], done["adjusted"]) == (3, 0)
