"""Keys in SQL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, select

from proxy.billing.keys import DEFAULT_ORGANIZATION, DEFAULT_PROJECT, Account, ApiKey, IdentityKey, KeyChanges
from proxy.billing.limits import BUDGET_NUSD_MAX, RATE_MAX, UNLIMITED, Limits, OnExhausted, OnStoreOutage
from proxy.ledger.accounts import key_store as module
from proxy.ledger.accounts.account_store import AccountStore, UnknownAccountError
from proxy.ledger.accounts.key_store import AliasTakenError, KeyStore, KeyStoreError, UnknownKeyError
from proxy.ledger.schema.account_tables import api_keys
from proxy.storage.database import reading
from tests.support.clock import Clock
from tests.support.ledgers import on_both_databases

pytestmark = pytest.mark.io


@pytest.fixture
def clock() -> Clock:
    return Clock(1_793_000_000.0)


@pytest.fixture
def keys(engine: Engine, clock: Clock) -> KeyStore:
    return KeyStore(engine, clock=clock)


def make(keys: KeyStore, number: int, alias: str, **more: Any) -> ApiKey:
    fields = {"models": None, "expires_at": None, **more}
    return keys.create(key_id=f"key-{number}", alias=alias, digest=bytes([number]) * 32, hint="tw-…abcd", **fields)


@on_both_databases
def test_a_key_comes_back_as_it_was_made(keys: KeyStore, clock: Clock) -> None:
    limits = Limits(budget_nusd=5 * 10**9, budget_window="12h", prepaid=True, rpm=1, tpm=RATE_MAX, parallel=2)
    ends = {"on_exhausted": OnExhausted.CUT, "on_store_outage": OnStoreOutage.FAIL_OPEN}
    made = [
        make(keys, 1, "anna"),
        make(keys, 2, "bert", models=["b", "a"], expires_at=clock.now + 5),
        make(keys, 3, "c", models=[]),
        make(keys, 4, "d", limits=limits, tags=["x", "ü y", "x"], **ends),
    ]
    assert list(keys.every()) == made
    assert [key.models for key in made] == [None, frozenset("ab"), frozenset(), None]
    assert [key.revision for key in made] == [3, 4, 5, 6]  # after the two accounts that are there from the beginning
    assert (made[0].project_id, made[0].limits, made[0].tags) == (DEFAULT_PROJECT, UNLIMITED, ())
    assert (made[3].limits, made[3].tags) == (limits, ("x", "ü y"))
    assert [keys.one(name) for name in ("key-1", "bert")] == made[:2]


def test_what_is_not_limited_is_not_kept(engine: Engine, keys: KeyStore) -> None:
    """So that a default that changes holds for all who have set nothing."""
    make(keys, 1, "anna")
    make(keys, 2, "bert", limits=Limits(rpm=3, budget_nusd=0))
    with reading(engine) as connection:
        kept = connection.execute(select(api_keys.c.limits).order_by(api_keys.c.key_id)).scalars().all()
    assert kept == [None, {"rpm": 3, "budget_usd": 0}]


def test_changes_since_a_revision_in_their_order(keys: KeyStore) -> None:
    first, second = make(keys, 1, "anna"), make(keys, 2, "bert")
    accounts = [getattr(one, "account_id", None) for one in keys.changes_since(0).rows[:2]]
    assert accounts == [DEFAULT_ORGANIZATION, DEFAULT_PROJECT]
    assert keys.changes_since(2).rows == [first, second]
    assert keys.changes_since(4).rows == []
    revoked = keys.revoke("key-1")
    assert revoked.revision == 5
    assert keys.changes_since(4).rows == [revoked]
    assert keys.changes_since(3).rows == [second, revoked]


def test_keys_and_accounts_count_their_changes_together(engine: Engine, keys: KeyStore, clock: Clock) -> None:
    accounts = AccountStore(engine, clock=clock)
    key = make(keys, 1, "anna")
    organization = accounts.create_organization(account_id="org-1", name="acme")
    blocked = keys.block("anna")
    project = accounts.block("proj_default")
    assert [one.revision for one in (key, organization, blocked, project)] == [3, 4, 5, 6]
    assert keys.changes_since(3).rows == [organization, blocked, project]


@on_both_databases
def test_an_alias_belongs_to_one_live_key(keys: KeyStore, clock: Clock) -> None:
    make(keys, 1, "anna", expires_at=clock.now + 10)
    with pytest.raises(AliasTakenError, match="anna"):
        make(keys, 2, "anna")
    clock.now += 10
    make(keys, 3, "anna")  # the first has expired
    keys.revoke("anna")
    make(keys, 4, "anna")
    assert [key.key_id for key in list(keys.every()) if key.live(clock.now)] == ["key-4"]


def test_an_alias_of_revoked_keys_names_them(keys: KeyStore) -> None:
    for number in (1, 2):
        make(keys, number, "anna")
        keys.revoke("anna")
    with pytest.raises(UnknownKeyError, match=r"revoked or expired keys that had it: key-1, key-2$"):
        keys.one("anna")


def test_revoking_by_id_or_alias_and_again(keys: KeyStore, clock: Clock) -> None:
    make(keys, 1, "anna")
    assert keys.revoke("anna").revoked_at == clock.now
    clock.now += 1
    again = keys.revoke("key-1")
    assert (again.revoked_at, again.revision) == (clock.now - 1, 4)
    with pytest.raises(UnknownKeyError, match="anna"):
        keys.revoke("anna")
    with pytest.raises(UnknownKeyError):
        keys.revoke("key-9")


@pytest.mark.parametrize("alias", ["", "  ", "a\nb", "a\x1b[31m", "x" * 129, "\ud800"])
def test_an_alias_is_a_name(keys: KeyStore, alias: str) -> None:
    with pytest.raises(ValueError, match="alias"):
        make(keys, 1, alias)


@on_both_databases
def test_changes_made_at_once_take_one_revision_each_and_an_alias_once(engine: Engine, keys: KeyStore) -> None:
    """As many machines would: with a lock only where it is needed, two would take the same revision or alias."""

    def make_or_none(number: int) -> ApiKey | None:
        try:
            return make(keys, number, f"alias-{number % 6}")
        except AliasTakenError:
            return None

    with ThreadPoolExecutor(4) as pool:
        made = [key for key in pool.map(make_or_none, range(24)) if key is not None]
    assert sorted(key.alias for key in made) == [f"alias-{number}" for number in range(6)]
    assert sorted(key.revision for key in made) == list(range(3, 9))
    assert len(keys.changes_since(2).rows) == 6


def test_a_key_belongs_to_a_project_that_is_there(engine: Engine, keys: KeyStore, clock: Clock) -> None:
    accounts = AccountStore(engine, clock=clock)
    project = accounts.create_project(account_id="proj-1", name="web", organization=DEFAULT_ORGANIZATION)
    assert make(keys, 1, "anna", project_id=project.account_id).project_id == "proj-1"
    for project_id in ("proj-2", DEFAULT_ORGANIZATION, "web"):
        with pytest.raises(UnknownAccountError, match="project"):
            make(keys, 2, "bert", project_id=project_id)
    assert len(list(keys.every())) == 1


WRONG: dict[str, dict[str, Any]] = {
    "budget_usd": {"budget_nusd": -1},
    "budget_usd: must be 0 to 1000000": {"budget_nusd": BUDGET_NUSD_MAX + 1},
    "budget_window": {"budget_window": "1y"},
    "budget_window: longer": {"budget_window": "999999999w"},
    "rpm": {"rpm": 0},
    "tpm": {"tpm": RATE_MAX + 1},
    "parallel": {"parallel": -1},
    "tags: must be at most": {"tags": [str(n) for n in range(21)]},
    "tags: each must be 1 to": {"tags": ["x" * 65]},
    "tags: each must be 1 to 64": {"tags": ["a\nb"]},
    "dimension_sources: must be some of": {"dimension_sources": ["litelm"]},
    "dimensions: the names must be": {"dimensions": {"team": "a"}},
    "dimensions: run must have": {"dimensions": {"run": " "}},
    "dimensions: must have at most 8 tags": {"dimensions": {f"tag:a{n}": "x" for n in range(9)}},
    "alias": {"alias": " "},
}


@pytest.mark.parametrize(("words", "change"), WRONG.items(), ids=list(WRONG))
def test_nonsense_is_refused_and_its_field_named(keys: KeyStore, words: str, change: dict[str, Any]) -> None:
    made = make(keys, 1, "anna")
    with pytest.raises(ValueError, match=f"^{words}"):
        keys.update("anna", **change)
    limits = {name: value for name, value in change.items() if name in Limits.__struct_fields__}
    new = {"alias": "bert", **{name: value for name, value in change.items() if name not in limits}}
    with pytest.raises(ValueError, match=f"^{words}"):
        make(keys, 2, **new, limits=Limits(**limits))
    assert list(keys.every()) == [made]


def test_an_update_changes_what_is_given_and_nothing_else(keys: KeyStore, clock: Clock) -> None:
    made = make(keys, 1, "anna", models=["a"], expires_at=clock.now + 5, limits=Limits(rpm=3, budget_nusd=7))
    plain: dict[str, Any] = {"alias": "bert", "on_store_outage": OnStoreOutage.FAIL_CLOSED, "models": None}
    changed = keys.update("anna", rpm=None, tpm=9, tags=["t"], **plain)
    assert changed == replace(made, limits=Limits(budget_nusd=7, tpm=9), tags=("t",), revision=4, **plain)
    assert list(keys.every()) == [changed]
    assert keys.update("bert", tpm=9, alias="bert") == changed  # nothing to do: nobody need learn of it
    assert keys.update("bert", limits=UNLIMITED, parallel=2).limits == Limits(parallel=2)


def test_an_alias_may_not_be_taken_by_a_change_either(keys: KeyStore, clock: Clock) -> None:
    make(keys, 1, "anna", expires_at=clock.now + 5)
    make(keys, 2, "bert")
    with pytest.raises(AliasTakenError, match="bert"):
        keys.update("anna", alias="bert")
    clock.now += 5
    make(keys, 3, "anna")
    with pytest.raises(AliasTakenError, match="anna"):
        keys.update("key-1", expires_at=None)  # it would live again, beside another of its name
    assert keys.update("key-1", alias="anna-of-old", expires_at=None).live(clock.now)


def test_nothing_is_in_the_way_of_revoking_and_blocking(keys: KeyStore, clock: Clock) -> None:
    """Two live keys of one alias, as by two machines whose clocks differ."""
    make(keys, 1, "anna", expires_at=clock.now + 5)
    clock.now += 5
    make(keys, 2, "anna")
    clock.now -= 5
    assert keys.block("key-1").blocked_at == clock.now
    assert keys.revoke("key-2").revoked_at == clock.now


def test_rotating_keeps_the_secret_before_for_a_while(keys: KeyStore, clock: Clock) -> None:
    made = make(keys, 1, "anna", limits=Limits(rpm=3))
    rotated = keys.rotate("anna", digest=b"2" * 32, hint="tw-…2222", old_until=clock.now + 60)
    assert rotated == replace(
        made, digest=b"2" * 32, hint="tw-…2222", old_digest=made.digest, old_until=clock.now + 60, revision=4
    )
    again = keys.rotate("anna", digest=b"3" * 32, hint="tw-…3333", old_until=clock.now)
    assert (again.old_digest, again.old_until) == (b"2" * 32, clock.now)
    assert list(keys.every()) == [again]


def test_blocking_and_unblocking_and_again(keys: KeyStore, clock: Clock) -> None:
    make(keys, 1, "anna")
    blocked = keys.block("anna")
    assert (blocked.blocked_at, blocked.live(clock.now)) == (clock.now, True)
    clock.now += 1
    assert keys.block("key-1") == blocked
    assert keys.unblock("anna").blocked_at is None
    assert keys.unblock("anna").revision == blocked.revision + 1


def test_a_revoked_key_stays_as_it_is(keys: KeyStore) -> None:
    make(keys, 1, "anna")
    revoked = keys.revoke("anna")
    for change in (
        lambda: keys.update("key-1", rpm=1),
        lambda: keys.rotate("key-1", digest=b"2" * 32, hint="", old_until=0.0),
        lambda: keys.block("key-1"),
        lambda: keys.unblock("key-1"),
    ):
        with pytest.raises(KeyStoreError, match="revoked"):
            change()
    assert list(keys.every()) == [revoked]


@on_both_databases
def test_changes_at_once_lose_nothing(engine: Engine, keys: KeyStore, clock: Clock) -> None:
    """Each reads what it changes under the lock: one that does not would undo another's."""
    make(keys, 1, "anna")
    names = ["rpm", "tpm", "parallel", "budget_nusd"]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: [keys.update("anna", **{name: n}) for n in range(1, 6)], names))
    changed = keys.one("anna")
    assert changed.limits == Limits(rpm=5, tpm=5, parallel=5, budget_nusd=5)
    assert changed.revision == 3 + 20


# -- more keys than are read at a time


@on_both_databases
def test_the_key_of_an_identity_is_made_once_by_all_who_need_it(engine: Engine, keys: KeyStore, clock: Clock) -> None:
    [project] = [one for one in AccountStore(engine, clock=clock).every() if one.account_id == DEFAULT_PROJECT]
    wanted = IdentityKey("ci", project, Limits(rpm=3), frozenset({"small"}), "5%")
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda _: KeyStore(engine, clock=clock).of_identity(wanted), range(8)))
    assert made == made[:1] * 8 == [*keys.every()] * 8
    assert (made[0].alias, made[0].limits, made[0].models) == ("ci@default", Limits(rpm=3), {"small"})
    assert made[0].byok == "5%"
    updated = keys.update("ci@default", alias="builds", rpm=None)
    assert keys.of_identity(wanted) == updated, "the settings are its beginning only"
    assert make(keys, 1, "ci@default").alias == "ci@default"
    revoked = keys.revoke(updated.key_id)
    assert keys.of_identity(wanted) == revoked
    long = replace(project, name="ü" * 128)
    assert keys.of_identity(IdentityKey("long", long)).alias == "identity_long_proj_default"
    with pytest.raises(UnknownAccountError):
        keys.of_identity(IdentityKey("ci", replace(project, account_id="proj_gone")))


def test_every_key_is_read_page_by_page(keys: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several are of the same instant."""
    monkeypatch.setattr(module, "PAGE_KEYS", 3)
    made = [make(keys, number, f"key {number}") for number in range(1, 9)]
    assert list(keys.every()) == made
    few = keys.every()
    assert next(few) == made[0]
    keys.revoke("key 8")
    assert [one.revoked_at is None for one in few] == [True] * 6 + [False]


def test_the_usable_keys_that_changed_last(keys: KeyStore, clock: Clock) -> None:
    made = [make(keys, number, f"key {number}") for number in range(1, 6)]
    make(keys, 6, "late", expires_at=clock.now)
    keys.revoke("key 5")
    latest = keys.latest(2)
    assert [row for row in latest.rows if isinstance(row, ApiKey)] == made[2:4]
    accounts = {row.account_id for row in latest.rows if isinstance(row, Account)}
    assert accounts == {DEFAULT_ORGANIZATION, DEFAULT_PROJECT}
    assert keys.changes_since(latest.revision).rows == []


def test_changes_come_in_pages_with_the_keys_of_digests(keys: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHANGES_MAX", 3)
    made = [make(keys, number, f"key {number}") for number in range(1, 6)]
    rotated = keys.rotate("key 1", digest=bytes(32), hint="tw-…0000", old_until=0.0)
    page = keys.changes_since(2)
    assert (list(page.rows), page.revision, page.behind) == (made[1:4], made[3].revision, True)
    page = keys.changes_since(page.revision)
    assert (list(page.rows), page.behind) == ([made[4], rotated], False)
    for hashed in (bytes(32), bytes([1]) * 32):
        assert keys.changes_since(page.revision, [hashed]).rows == [rotated]
    assert keys.changes_since(page.revision, [bytes([9]) * 32]) == KeyChanges([], page.revision, behind=False)
    assert sorted(one.key_id for one in keys.with_ids(["key-1", "key-2", "other"])) == ["key-1", "key-2"]
