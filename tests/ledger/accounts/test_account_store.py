"""Organizations and projects in SQL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import Engine

from proxy.billing.keys import DEFAULT_ORGANIZATION, DEFAULT_PROJECT, Account, AccountKind
from proxy.billing.limits import UNLIMITED, Limits
from proxy.ledger.accounts.account_store import AccountStore, NameTakenError, UnknownAccountError
from proxy.storage.database import open_engine
from tests.support.ledgers import on_both_databases

pytestmark = pytest.mark.io

NOW = 1_793_000_000.0


@pytest.fixture
def accounts(engine: Engine) -> AccountStore:
    return AccountStore(engine, clock=lambda: NOW)


def test_two_are_there_from_the_beginning(fresh_ledger_url: str) -> None:
    engine = open_engine(fresh_ledger_url)
    organization, project = AccountStore(engine, clock=lambda: NOW).every()
    assert (organization.account_id, organization.kind) == (DEFAULT_ORGANIZATION, AccountKind.ORGANIZATION)
    assert (project.account_id, project.kind) == (DEFAULT_PROJECT, AccountKind.PROJECT)
    assert (organization.parent_id, project.parent_id) == (None, DEFAULT_ORGANIZATION)
    assert (organization.name, project.name) == ("default", "default")
    assert organization.limits == project.limits == UNLIMITED
    assert organization.created_at == project.created_at > NOW - 10**8
    assert {organization.revision, project.revision} == {1, 2}
    engine.dispose()


@on_both_databases
def test_an_account_comes_back_as_it_was_made(accounts: AccountStore) -> None:
    limits = Limits(budget_nusd=3, budget_window="calendar_month", parallel=4)
    acme = accounts.create_organization(account_id="org-1", name="acme", limits=limits)
    web = accounts.create_project(account_id="proj-1", name="web", organization="acme")
    assert acme == Account("org-1", AccountKind.ORGANIZATION, None, "acme", limits, NOW, None, 3)
    assert web == Account("proj-1", AccountKind.PROJECT, "org-1", "web", UNLIMITED, NOW, None, 4)
    assert accounts.every()[2:] == [acme, web]
    assert [accounts.one(name) for name in ("org-1", "web")] == [acme, web]


def test_a_name_belongs_to_one_of_its_kind_and_organization(accounts: AccountStore) -> None:
    accounts.create_organization(account_id="org-1", name="acme")
    accounts.create_organization(account_id="org-2", name="bolt")
    with pytest.raises(NameTakenError, match="name: another organization already has the name 'acme'"):
        accounts.create_organization(account_id="org-3", name="acme")
    for organization in ("acme", "bolt"):
        accounts.create_project(account_id=f"proj-{organization}", name="web", organization=organization)
    with pytest.raises(NameTakenError, match="project"):
        accounts.create_project(account_id="proj-3", name="web", organization="acme")
    with pytest.raises(NameTakenError):
        accounts.update("bolt", name="acme")
    both = r"use one of the ids proj-acme \(project of org-1\), proj-bolt \(project of org-2\)$"
    with pytest.raises(UnknownAccountError, match=both):
        accounts.one("web")
    assert accounts.one("proj-bolt").parent_id == "org-2"
    assert accounts.one("default", AccountKind.PROJECT).account_id == DEFAULT_PROJECT
    with pytest.raises(UnknownAccountError, match="2 accounts have the name"):
        accounts.block("default")


def test_a_name_of_very_many_names_some(accounts: AccountStore) -> None:
    for number in range(12):
        accounts.create_organization(account_id=f"org-{number:02}", name=f"customer {number}")
        accounts.create_project(account_id=f"proj-{number:02}", name="web", organization=f"customer {number}")
    with pytest.raises(
        UnknownAccountError, match=r"12 accounts have the name 'web'.* proj-09 \(project of org-09\), …$"
    ):
        accounts.one("web")


def test_an_id_comes_before_a_name(accounts: AccountStore) -> None:
    accounts.create_organization(account_id="org-1", name="org-2")
    second = accounts.create_organization(account_id="org-2", name="org-1")
    assert accounts.one("org-2") == second


def test_projects_are_of_organizations_that_are_there(accounts: AccountStore) -> None:
    accounts.create_project(account_id="proj-1", name="web", organization=DEFAULT_ORGANIZATION)
    for organization in ("nobody", "web", DEFAULT_PROJECT):
        with pytest.raises(UnknownAccountError, match="organization: no organization"):
            accounts.create_project(account_id="proj-2", name="x", organization=organization)
    assert len(accounts.every()) == 3


def test_an_update_changes_what_is_given_and_nothing_else(accounts: AccountStore) -> None:
    made = accounts.create_organization(account_id="org-1", name="acme", limits=Limits(budget_nusd=3, rpm=7))
    changed = accounts.update("acme", name="acme inc", budget_nusd=None, prepaid=True)
    assert changed == replace(made, name="acme inc", limits=Limits(prepaid=True, rpm=7), revision=4)
    assert accounts.one("org-1") == changed
    assert accounts.update("org-1", rpm=7) == changed


def test_nonsense_is_refused_and_its_field_named(accounts: AccountStore) -> None:
    before = accounts.every()
    with pytest.raises(ValueError, match=r"^name: "):
        accounts.create_organization(account_id="org-1", name="a\tb")
    with pytest.raises(ValueError, match=r"^rpm: "):
        accounts.create_organization(account_id="org-1", name="a", limits=Limits(rpm=0))
    with pytest.raises(ValueError, match=r"^budget_window: not a budget window: 'soon'"):
        accounts.update(DEFAULT_PROJECT, budget_window="soon")
    with pytest.raises(ValueError, match=r"^name: "):
        accounts.update(DEFAULT_PROJECT, name="")
    assert accounts.every() == before


def test_blocking_and_unblocking_and_again(accounts: AccountStore) -> None:
    blocked = accounts.block(DEFAULT_ORGANIZATION)
    assert (blocked.blocked_at, blocked.revision) == (NOW, 3)
    assert accounts.block(DEFAULT_ORGANIZATION) == blocked
    assert accounts.unblock(DEFAULT_ORGANIZATION).blocked_at is None
    with pytest.raises(UnknownAccountError, match="'nobody'"):
        accounts.block("nobody")


@on_both_databases
def test_changes_made_at_once_take_one_revision_each_and_a_name_once(accounts: AccountStore) -> None:
    def make_or_none(number: int) -> Account | None:
        try:
            return accounts.create_organization(account_id=f"org-{number}", name=f"name-{number % 6}")
        except NameTakenError:
            return None

    with ThreadPoolExecutor(4) as pool:
        made = [one for one in pool.map(make_or_none, range(24)) if one is not None]
    assert sorted(one.name for one in made) == [f"name-{number}" for number in range(6)]
    assert sorted(one.revision for one in made) == list(range(3, 9))
