"""What is paid in: in the balances, not in the days; and nothing of it can be changed unnoticed."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import date
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, delete, insert, select, update

from proxy.billing.correction import CorrectionError, CorrectionRequest
from proxy.billing.entries import LedgerEntry
from proxy.billing.keys import DEFAULT_ORGANIZATION, DEFAULT_PROJECT
from proxy.billing.limits import BUDGET_NUSD_MAX
from proxy.ledger.accounts.account_store import AccountStore
from proxy.ledger.accounts.credit import CreditError, add_credit
from proxy.ledger.accounts.key_store import KeyStore
from proxy.ledger.schema.tables import balances, ledger_entries, usage_daily
from proxy.ledger.settling.corrections import Corrections
from proxy.ledger.settling.store import Arrival
from proxy.reports.entry_reader import EntryFilter, EntryReader, entry_json
from proxy.reports.table_text import ENTRIES
from proxy.reports.totals import SpendAndCredit, read_paid
from proxy.storage.database import reading, writing
from tests.ledger.entries import balances_of, days_of, emptied, stored
from tests.ledger.priced_entries import FIRST, NODE, a_real_entry, a_real_store, settle, wrong
from tests.support.examples import examples
from tests.support.ledger_tables import read_balances, read_daily
from tests.support.ledgers import on_both_databases

pytestmark = pytest.mark.io

ENTRY = ledger_entries.c
USD = 10**9
EVER = (date.min, date.max)


def pay(engine: Engine, nusd: int, *, who: str = "key-1", name: str = "anna", number: int = 1) -> LedgerEntry:
    """A top-up with an id of its own."""
    exchange_id = str(UUID(int=(1 << 100) + number))
    return add_credit(
        a_real_store(engine), exchange_id=exchange_id, scope_id=who, name=name, nusd=nusd, why=" paid by card "
    )


@on_both_databases
def test_a_top_up_is_an_entry_that_lowers_the_balance(engine: Engine) -> None:
    settle(engine, a_real_entry(0))
    used = a_real_entry(0).charge_nusd or 0
    paid = pay(engine, 50 * USD)
    assert stored(engine)[-1] == paid
    shown = entry_json(paid)
    assert (shown["kind"], shown["charge_usd"], shown["cost_usd"]) == ("credit", "-50", "0")
    assert shown["details"] == {"why": "paid by card", "by": "operator"}
    (balance,) = read_balances(engine)
    assert (balance.charged_nusd, balance.entries) == (used - 50 * USD, 2)
    (day,) = read_daily(engine, *EVER)
    assert (day.charged_nusd, day.entries) == (used, 1)
    assert read_paid(engine, ["key-1"]) == {"key-1": SpendAndCredit(used, 50 * USD)}
    assert wrong(engine) == wrong(engine, since=0.0) == {}


def test_whoever_has_used_nothing_may_pay_in(engine: Engine) -> None:
    """A batch without any usage moves no day."""
    pay(engine, 1)
    assert read_daily(engine, *EVER) == []
    assert [(one.key_id, one.charged_nusd) for one in read_balances(engine)] == [("key-1", -1)]
    assert wrong(engine) == {}


def test_a_refund_is_a_top_up_with_the_other_sign(engine: Engine) -> None:
    pay(engine, 50 * USD)
    pay(engine, -5 * USD, number=2)
    assert read_balances(engine)[0].charged_nusd == -45 * USD
    assert wrong(engine) == {}


@on_both_databases
def test_the_same_top_up_again_pays_nothing_more_and_another_is_refused(engine: Engine) -> None:
    paid = pay(engine, 50 * USD)
    assert pay(engine, 50 * USD) == paid
    for other in ({"nusd": 51 * USD}, {"nusd": 50 * USD, "who": "key-2"}):
        with pytest.raises(CreditError, match="id: the ledger has another"):
            pay(engine, **other)  # type: ignore[arg-type]
    assert read_balances(engine)[0].charged_nusd == -50 * USD
    assert wrong(engine) == {}


@pytest.mark.parametrize(
    ("nusd", "why", "words"),
    [
        (0, "r", "^usd: "),
        (BUDGET_NUSD_MAX + 1, "r", "^usd: "),
        (-BUDGET_NUSD_MAX - 1, "r", "^usd: "),
        (1, "  ", "^reason: "),
        (1, "a\nb", "^reason: "),
        (1, "x" * 501, "^reason: "),
    ],
)
def test_nonsense_is_refused_and_its_field_named(engine: Engine, nusd: int, why: str, words: str) -> None:
    with pytest.raises(CreditError, match=words):
        add_credit(a_real_store(engine), exchange_id=str(UUID(int=1)), scope_id="k", name="n", nusd=nusd, why=why)
    assert stored(engine) == []


def test_a_person_sees_what_it_is(engine: Engine) -> None:
    shown = ENTRIES.line(pay(engine, 50 * USD))
    assert " credit " in shown
    assert shown.endswith("-50  credit: paid by card")


def test_a_top_up_is_no_exchange_that_could_be_adjusted(engine: Engine) -> None:
    paid = pay(engine, 50 * USD)
    with pytest.raises(CorrectionError):
        Corrections(engine, a_real_store(engine)).adjust(paid.exchange_id, CorrectionRequest(charge_nusd=1), "why not")
    assert len(stored(engine)) == 1


def test_it_is_found_by_its_name_and_followed(engine: Engine) -> None:
    pay(engine, 1, who="proj-1", name="web")
    settle(engine, a_real_entry(0))
    assert [one.kind for one in EntryReader(engine, EntryFilter(key_alias="web")).new_entries()] == ["credit"]


# -- what keys and accounts have used and paid in -------------------------------------------------------------------


@on_both_databases
def test_used_by_the_keys_below_and_paid_in_for_itself(engine: Engine) -> None:
    keys = KeyStore(engine, clock=time.time)
    accounts = AccountStore(engine, clock=time.time)
    accounts.create_project(account_id="proj-1", name="web", organization=DEFAULT_ORGANIZATION)
    accounts.create_organization(account_id="org-1", name="acme")
    for number, project in enumerate([DEFAULT_PROJECT, "proj-1", "proj-1"]):
        keys.create(
            key_id=f"key-{number}", alias=f"a{number}", digest=bytes([number]) * 32, hint="", models=None,
            expires_at=None, project_id=project,
        )  # fmt: skip
    settle(engine, *(a_real_entry(number, key=f"key-{number}") for number in range(3)))
    used = [a_real_entry(number).charge_nusd or 0 for number in range(3)]
    for number, (who, usd) in enumerate([("key-1", 3), ("proj-1", 5), (DEFAULT_ORGANIZATION, 7), ("proj-1", -1)]):
        pay(engine, usd * USD, who=who, number=number)
    expected = {
        "key-0": (used[0], 0),
        "key-1": (used[1], 3 * USD),
        "proj-1": (used[1] + used[2], 4 * USD),
        DEFAULT_PROJECT: (used[0], 0),
        DEFAULT_ORGANIZATION: (sum(used), 7 * USD),
        "org-1": (0, 0),
    }
    assert read_paid(engine, expected) == {who: SpendAndCredit(*sums) for who, sums in expected.items()}
    assert read_paid(engine, ["proj-1"])["proj-1"].left_nusd == 4 * USD - used[1] - used[2]
    assert wrong(engine) == {}


# -- what is broken by hand -----------------------------------------------------------------------------------------


def of_credit(**values: Any) -> Any:
    return update(ledger_entries).where(ENTRY.kind == "credit").values(**values)


def doubled(engine: Engine, **differences: Any) -> Any:
    """An INSERT of the top-up again, with these differences."""
    with reading(engine) as connection:
        row = connection.execute(select(ledger_entries).where(ENTRY.kind == "credit")).one()
    return insert(ledger_entries).values(**{**dict(zip(ENTRY.keys(), row, strict=True)), "seq": 1, **differences})


BREAKS: dict[str, tuple[Callable[[Engine], Any], dict[str, int]]] = {
    "its amount": (lambda _: of_credit(charge_nusd=-USD), {"credits": 1, "balances": 1}),
    "its amount, by a nano-dollar": (lambda _: of_credit(charge_nusd=-50 * USD - 1), {"credits": 1, "balances": 1}),
    "no amount": (lambda _: of_credit(charge_nusd=None), {"credits": 1, "balances": 1}),
    "whose it is": (lambda _: of_credit(key_id="key-2"), {"credits": 1, "balances": 2}),
    "when it was": (lambda _: of_credit(started_at=1.0), {"credits": 1}),
    "why it was": (lambda _: of_credit(details={"why": "a gift", "by": "operator"}), {"credits": 1}),
    "a cost": (lambda _: of_credit(cost_nusd=1), {"credits": 1, "balances": 1}),
    "tokens": (lambda _: of_credit(prompt_tokens=1), {"credits": 1, "balances": 1}),
    "a model": (lambda _: of_credit(model="m"), {"balances": 1}),
    "its kind: a usage": (
        lambda _: of_credit(kind="usage"),
        {"balances": 1, "days": 1, "counts": 1, "prices": 1},
    ),
    "its kind: nobody knows it": (lambda _: of_credit(kind="gift"), {"terminal": 1, "balances": 1, "days": 1}),
    "a usage's kind": (
        lambda _: update(ledger_entries).where(ENTRY.kind == "usage").values(kind="credit"),
        {"days": 1},
    ),
    "a second one under its id": (doubled, {"terminal": 1, "credits": 1, "balances": 1}),
    "it is gone": (lambda _: delete(ledger_entries).where(ENTRY.kind == "credit"), {"balances": 1}),
    "it is another's exchange": (
        lambda _: of_credit(exchange_id=a_real_entry(0).exchange_id),
        {"terminal": 1, "credits": 1},
    ),
    "it is adjusted": (
        lambda engine: doubled(engine, kind="adjustment", charge_nusd=1),
        {"terminal": 1, "adjustments": 1, "days": 1},
    ),
    "its balance": (lambda _: update(balances).values(charged_nusd=balances.c.charged_nusd - 1), {"balances": 1}),
    "a day that has it": (
        lambda _: update(usage_daily).values(charged_nusd=usage_daily.c.charged_nusd - 50 * USD),
        {"balances": 1, "days": 1},
    ),
}


@pytest.mark.parametrize("broken", BREAKS.values(), ids=list(BREAKS))
def test_what_is_broken_by_hand_is_found(
    engine: Engine, broken: tuple[Callable[[Engine], Any], dict[str, int]]
) -> None:
    """Before, nothing is: `test_a_top_up_is_an_entry_that_lowers_the_balance`."""
    settle(engine, a_real_entry(0))
    pay(engine, 50 * USD)
    how, expected = broken
    with writing(engine) as connection:
        connection.execute(how(engine))
    assert wrong(engine) == expected
    assert wrong(engine, since=0.0) == expected


def test_a_top_up_of_no_money_is_found(engine: Engine) -> None:
    pay(engine, 50 * USD)
    value = "'NaN'" if engine.dialect.name == "postgresql" else "'much'"
    with writing(engine) as connection:
        connection.exec_driver_sql(f"UPDATE ledger_entries SET charge_usd = {value}")
    assert {"credits", "balances"} <= wrong(engine).keys()


# -- all that may happen ----------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["use", "pay", "adjust", "again"]),
        st.sampled_from(["key-0", "key-1", "proj-1"]),
        st.integers(-(10**15), 10**15).filter(bool),
    ),
    max_size=15,
)


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_balances_are_sums_of_all_entries_and_days_of_those_that_are_no_credit(
    engine: Engine, steps: list[tuple[str, str, int]]
) -> None:
    emptied(engine)
    store = a_real_store(engine)
    used: list[LedgerEntry] = []
    for number, (what, who, nusd) in enumerate(steps):
        if what == "use":
            used.append(a_real_entry(number, key=who, started_at=1_793_000_000.0 + 40_000 * number))
            store.settle([Arrival(used[-1], NODE, FIRST + len(used))])
        elif what == "pay":
            pay(engine, nusd, who=who, number=number)
        elif used and what == "adjust":
            Corrections(engine, store).adjust(used[-1].exchange_id, CorrectionRequest(charge_nusd=abs(nusd)), "because")
        elif used:
            store.settle([Arrival(used[0], NODE, FIRST + 1)])
    entries = stored(engine)
    assert read_balances(engine) == balances_of(entries)
    assert read_daily(engine, *EVER) == days_of([one for one in entries if one.kind != "credit"])
    assert wrong(engine) == {}
