"""Lists of keys and accounts: what they select, in which order, page by page."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest
from sqlalchemy import Engine, insert

from proxy.billing.keys import AccountKind
from proxy.billing.limits import Limits, credit_counter_id
from proxy.billing.reservation import CounterState
from proxy.ledger.accounts.account_store import AccountStore
from proxy.ledger.accounts.credit import credit_entry
from proxy.ledger.accounts.key_store import KeyStore
from proxy.ledger.schema.tables import archived_sums
from proxy.reports.account_list import AccountFilter, AccountOrder, AccountStatus, read_account_list
from proxy.reports.buckets import DAY_S
from proxy.reports.budget_states import fullest, read_budget_states
from proxy.reports.key_list import KeyFilter, KeyOrder, KeyStatus, read_keys
from proxy.storage.database import writing
from tests.ledger.entries import a_store, an_entry, arriving
from tests.ledger.priced_entries import a_real_store
from tests.support.clock import Clock
from tests.support.ledgers import on_both_databases

pytestmark = pytest.mark.io

USD = 10**9
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()
KEYS: dict[str, dict[str, Any]] = {
    "key-a": {"alias": "Anna's laptop", "limits": Limits(budget_nusd=10 * USD)},
    "key-b": {"alias": "bert 100% sure", "project_id": "proj-web", "limits": Limits(prepaid=True)},
    "key-c": {"alias": "ci", "project_id": "proj-web", "expires_at": NOW - 1},
    "key-d": {"alias": "demo", "project_id": "proj-app"},
    "key-e": {"alias": "eva", "project_id": "proj-off"},
    "key-f": {"alias": "fred"},
}
"""key → fields; each was made a day after the one before"""
SPENT = {"key-a": (9 * USD, NOW - DAY_S), "key-b": (4 * USD, NOW - 40 * DAY_S), "key-c": (USD, NOW)}
"""key → charge and time of its only entry"""


@pytest.fixture
def filled(engine: Engine) -> Engine:
    clock = Clock(NOW - 20 * DAY_S)
    accounts, keys = AccountStore(engine, clock=clock), KeyStore(engine, clock=clock)
    for organization in ("acme", "Borealis"):
        accounts.create_organization(account_id=f"org-{organization.lower()}", name=organization)
    for name, above in (("web", "org-acme"), ("app", "org-borealis"), ("off", "org-borealis")):
        accounts.create_project(account_id=f"proj-{name}", name=name, organization=above)
        clock.now += 1
    accounts.block("proj-off")
    for number, (key_id, fields) in enumerate(KEYS.items()):
        clock.now += DAY_S
        made = {"models": None, "expires_at": None, **fields}
        keys.create(key_id=key_id, digest=bytes([number]) * 32, hint="tw-…abcd", **made)
    keys.revoke("key-f")
    used = [
        an_entry(number, key_id=key_id, charge_nusd=charge, started_at=at)
        for number, (key_id, (charge, at)) in enumerate(SPENT.items())
    ]
    a_store(engine).settle(arriving(*used))
    paid = credit_entry(exchange_id=an_entry(77).exchange_id, scope_id="key-b", name="b", nusd=4 * USD, why="x", at=NOW)
    a_real_store(engine).settle(arriving(paid))
    return engine


def selected(engine: Engine, shares: dict[str, float] | None = None, **wanted: Any) -> str:
    """The last letters of the selected keys, in order."""
    found, total = read_keys(engine, KeyFilter(now=NOW, **wanted), shares or {}, first=0, size=50)
    assert total == len(found)
    return "".join(one.key_id[-1] for one in found)


@on_both_databases
def test_keys_are_selected_by_what_they_are(filled: Engine) -> None:
    assert selected(filled) == "fedcba"
    assert selected(filled, with_revoked=False) == "edcba"
    by_text = {"LAPTOP": "a", "0% s": "b", "y-c": "c", "a_": "", "WEB": "cb", "boreal": "ed", "oj-a": "d", "acme": "cb"}
    assert {text: selected(filled, text=text) for text in by_text} == by_text
    assert selected(filled, project_id="proj-web") == "cb"
    assert selected(filled, organization_id="org-borealis") == "ed"
    assert (selected(filled, alias="demo"), selected(filled, key_id="key-e")) == ("d", "e")
    shares = {"key-a": 0.9, "key-b": 1.0, "key-c": 2.0}
    states = {status.value: selected(filled, shares, status=status) for status in KeyStatus}
    assert states == {"revoked": "f", "expired": "c", "blocked": "e", "exhausted": "b", "active": "da"}
    assert selected(filled, unused=True, with_revoked=False) == "edb"


@on_both_databases
def test_keys_are_in_order_and_in_pages(filled: Engine) -> None:
    shares = {"key-a": 0.9, "key-b": 1.0}
    orders = {
        KeyOrder.ALIAS: ("abcdef", "fedcba"),
        KeyOrder.CREATED: ("abcdef", "fedcba"),
        KeyOrder.SPEND: ("defcba", "abcfed"),
        KeyOrder.LAST_USED: ("defbac", "cabfed"),
        KeyOrder.BUDGET: ("cdefab", "bafedc"),
    }
    for order, (rising, falling) in orders.items():
        assert selected(filled, shares, order=order, descending=False) == rising
        assert selected(filled, shares, order=order) == falling
    for order in KeyOrder:
        whole, _ = read_keys(filled, KeyFilter(now=NOW, order=order), shares, first=0, size=9)
        parts = [read_keys(filled, KeyFilter(now=NOW, order=order), shares, first=n, size=2) for n in (0, 2, 4, 6)]
        assert [one for page, _ in parts for one in page] == whole
        assert {total for _, total in parts} == {6}


@on_both_databases
def test_a_line_says_whose_the_key_is_and_how_it_was_used(filled: Engine) -> None:
    found, _ = read_keys(filled, KeyFilter(now=NOW), {}, first=0, size=9)
    lines = {one.key_id: one for one in found}
    web = lines["key-b"]
    assert (web.project, web.organization_id, web.organization) == ("web", "org-acme", "acme")
    assert [str(lines[f"key-{name}"].last_used) for name in "abcd"] == [
        "2026-11-19", "2026-10-11", "2026-11-20", "None",
    ]  # fmt: skip
    assert [lines[f"key-{name}"].month_nusd for name in "abcd"] == [9 * USD, 0, USD, 0]
    assert lines["key-e"].status is KeyStatus.BLOCKED


def test_credits_that_are_archived_are_no_spend(filled: Engine) -> None:
    """What is left of the entries of an archived month are its sums."""
    row = dict.fromkeys(("cost_nusd", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"), 0)
    row |= {"total_tokens": 0, "entries": 1, "charged_nusd": -20 * USD, "month": "2026-01", "day": date(2026, 1, 1)}
    with writing(filled) as connection:
        connection.execute(insert(archived_sums), {**row, "key_id": "key-d", "model": "", "kind": "credit"})
        connection.exec_driver_sql("INSERT INTO balances SELECT 'key-d', -15, 0, 0, 0, 0, 0, 0, 2")
    assert selected(filled, order=KeyOrder.SPEND) == "adbcfe"


def accounts_of(engine: Engine, shares: dict[str, float] | None = None, **wanted: Any) -> list[str]:
    found, total = read_account_list(engine, AccountFilter(**wanted), shares or {}, first=0, size=50)
    assert total == len(found)
    return [one.account_id.partition("-")[2] or one.account_id for one in found]


@on_both_databases
def test_accounts_are_selected_and_in_order(filled: Engine) -> None:
    projects = {"kind": AccountKind.PROJECT}
    assert accounts_of(filled, **projects) == ["proj_default", "web", "app", "off"]
    assert accounts_of(filled, text="BOREAL") == ["borealis", "app", "off"]
    assert accounts_of(filled, organization_id="org-acme") == ["acme", "web"]
    assert accounts_of(filled, status=AccountStatus.BLOCKED) == ["off"]
    assert accounts_of(filled, {"proj-web": 1.5}, status=AccountStatus.EXHAUSTED) == ["web"]
    active = accounts_of(filled, {"proj-web": 1.5}, status=AccountStatus.ACTIVE)
    assert {"web", "off"}.isdisjoint(active)
    assert accounts_of(filled, order=AccountOrder.NAME, **projects) == ["app", "proj_default", "off", "web"]
    by_spend = accounts_of(filled, order=AccountOrder.SPEND, descending=True)
    assert set(by_spend[:2]) == {"org_default", "proj_default"}
    assert set(by_spend[2:4]) == {"acme", "web"}
    by_share = accounts_of(filled, {"org-acme": 0.5}, order=AccountOrder.BUDGET, descending=True)
    assert by_share[0] == "acme"
    found, _ = read_account_list(filled, AccountFilter(), {}, first=0, size=9)
    assert {one.account_id: one.keys for one in found} == {
        "org_default": 1, "proj_default": 1, "org-acme": 2, "proj-web": 2, "org-borealis": 2, "proj-app": 1,
        "proj-off": 1,
    }  # fmt: skip
    assert {one.account_id: one.organization for one in found}["proj-app"] == "Borealis"


def test_the_fullest_budget_of_each(filled: Engine) -> None:
    """A counter whose window is over says nothing of the window of now: before, it was shown with its old spend, and
    with a time in the past as the next period."""
    KeyStore(filled, clock=lambda: NOW).update("key-a", budget_window="calendar_day")
    counters = [
        CounterState("key-a", NOW - NOW % DAY_S - DAY_S, 9 * USD, 0, 0, 0),
        CounterState("key-b", 0.0, 1, 0, 0, 0),
        CounterState(credit_counter_id("key-b"), 0.0, -USD, 0, 0, 0),
    ]
    states = fullest(read_budget_states(filled, counters, NOW))
    assert {one: state.used_ratio for one, state in states.items()} == {"key-a": 0.0, "key-b": 0.75}
    assert (states["key-a"].since, states["key-a"].until) == (NOW - NOW % DAY_S, NOW - NOW % DAY_S + DAY_S)
    assert (states["key-b"].limit_nusd, states["key-b"].spent_nusd) == (4 * USD, 3 * USD)
