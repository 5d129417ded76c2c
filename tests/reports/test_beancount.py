"""Double entry: every transaction adds up to zero, and Beancount's own checker finds our balances in the file."""

from __future__ import annotations

import io
import random
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.billing.entries import LedgerEntry
from proxy.billing.period import Closings
from proxy.ledger.accounts.owners import owners_of
from proxy.ledger.settling.store import Arrival
from proxy.reports.beancount import Account, postings, write_beancount
from proxy.reports.entry_reader import EntryFilter, EntryReader
from proxy.reports.export import with_owners
from proxy.reports.totals import read_balances
from proxy.storage.database import open_engine, reading
from tests.ledger.entries import a_store, an_entry
from tests.support.sqlite import empty_ledger

MONEY = st.none() | st.integers(-(10**15), 10**15)
NAMES = ["key-1", "key_1", "key.1", "ключ", 'a "quoted" \\ name', "line\nbreak", "x" * 300, "-", "=1+1", "\u2028"]


@given(st.sampled_from(["usage", "adjustment", "attempt", "credit"]), MONEY, MONEY)
def test_what_an_entry_posts_adds_up_to_zero(kind: str, charge: int | None, cost: int | None) -> None:
    found = postings(an_entry(kind=kind, charge_nusd=charge, cost_nusd=cost))
    assert sum(one.nusd for one in found) == 0
    of = {account: sum(one.nusd for one in found if one.account == account) for account in Account}
    assert (of[Account.CUSTOMER], of[Account.COST]) == (charge or 0, cost or 0)
    income = {"adjustment": Account.ADJUSTMENTS, "credit": Account.PAYMENTS}.get(kind, Account.REVENUE)
    assert (of[income], of[Account.PAYABLE]) == (-(charge or 0), -(cost or 0))


def test_a_grant_is_no_payment() -> None:
    found = postings(an_entry(kind="credit", charge_nusd=-5, cost_nusd=0, details={"grant": "grant_1"}))
    assert found == [(Account.CUSTOMER, "key-1", -5), (Account.GRANTS, None, 5)]


def some_entries(count: int) -> list[LedgerEntry]:
    """Of every kind, for customers and providers with every name."""
    rng = random.Random(1)
    found = []
    for number in range(count):
        kind = rng.choices(["usage", "adjustment", "credit", "attempt"], [90, 5, 3, 2])[0]
        money = {"charge_nusd": rng.randrange(10**9), "cost_nusd": rng.choice([None, rng.randrange(10**9)])}
        if kind == "adjustment":
            money = {"charge_nusd": rng.randrange(-(10**8), 10**8), "cost_nusd": rng.randrange(-(10**8), 10**8)}
        if kind == "credit":
            money = {"charge_nusd": -rng.randrange(-(10**9), 10**10), "cost_nusd": 0}
        name = rng.choice(NAMES)
        started_at = 1_790_000_000.0 + rng.randrange(90 * 86_400)
        more: Any = {"kind": kind, "key_id": name, "key_alias": name, "provider": rng.choice(NAMES), "model": name}
        details = {"why": name, **({"grant": "grant_1"} if kind == "credit" and rng.random() < 0.5 else {})}
        found.append(an_entry(number, started_at=started_at, details=details, **more, **money))
    return found


def exported(folder: Path, count: int) -> str:
    engine = open_engine(empty_ledger(folder / "ledger.db"))
    store, entries = a_store(engine), some_entries(count)
    for at in range(0, count, 1_000):
        store.settle([Arrival(one) for one in entries[at : at + 1_000]])
    with reading(engine) as connection:
        balances = read_balances(connection)
    file = io.BytesIO()
    settled = EntryReader(engine, EntryFilter()).settled()
    write_beancount(file, with_owners(settled, partial(owners_of, engine), Closings()), balances)
    engine.dispose()
    return file.getvalue().decode()


def bean_check(folder: Path, text: str) -> str:
    """What the checker has to say; nothing if all is well."""
    file = folder / "ledger.beancount"
    file.write_text(text, "utf-8", newline="\n")
    program = Path(sys.executable).parent / "bean-check"
    done = subprocess.run([program, "--no-cache", file], capture_output=True, text=True, timeout=800, check=False)
    assert (done.returncode == 0) == (done.stdout + done.stderr == "")
    return done.stdout + done.stderr


@pytest.mark.process
@pytest.mark.thorough
def test_the_real_checker_accepts_it_and_asserts_our_balances(tmp_path: Path) -> None:
    text = exported(tmp_path, 400)
    assert text.count("  exchange: ") > 380
    assert text.count(" balance ") == len(NAMES) + 1
    assert bean_check(tmp_path, text) == ""

    whole = re.search(r"(?m)^\S+ balance Assets:Customers:\S+  (\S+) ~ 0 USD$", text)
    assert whole is not None
    nano_more = f"{float(whole[1]) + 1e-9:.9f}"
    assert "Balance failed" in bean_check(tmp_path, text.replace(f"  {whole[1]} ~", f"  {nano_more} ~", 1))
    first = re.search(r"(?m)^  Income:Usage  (\S+) USD$", text)
    assert first is not None
    assert "does not balance" in bean_check(tmp_path, text.replace(first[0], "  Income:Usage  0.000000001 USD", 1))


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(900)
def test_the_real_checker_accepts_a_hundred_thousand_entries(tmp_path: Path) -> None:
    text = exported(tmp_path, 100_000)
    assert text.count("  exchange: ") > 95_000
    assert bean_check(tmp_path, text) == ""


def test_a_part_of_the_ledger_asserts_nothing() -> None:
    file = io.BytesIO()
    write_beancount(file, [], None)
    assert b" balance " not in file.getvalue()


@pytest.mark.io
def test_a_usage_of_unknown_cost_is_marked(tmp_path: Path) -> None:
    """Before, it looked as if its cost was 0."""
    entries = some_entries(100)
    unknown = [one for one in entries if one.kind == "usage" and one.cost_nusd is None]
    assert exported(tmp_path, 100).count('  cost: "unknown"\n') == len(unknown) > 10
