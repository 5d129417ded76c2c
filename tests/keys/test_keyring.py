"""Who may, and how fast a change counts."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from proxy.billing.keys import (
    DEFAULT_ORGANIZATION,
    DEFAULT_PROJECT,
    IDENTITY_KEYS,
    Account,
    AccountKind,
    ApiKey,
    KeyChanges,
    expires_at_from,
)  # fmt: skip
from proxy.billing.limits import UNLIMITED, Limits
from proxy.foundation.times import iso_utc
from proxy.keys import keyring as module
from proxy.keys import narrowing
from proxy.keys.access import Refused
from proxy.keys.guesses import GUESSES_MAX
from proxy.keys.keyring import Keyring
from proxy.keys.narrowing import PresentedKey, narrowable, narrowed_text
from proxy.keys.secrets import digest, hint, new_secret
from proxy.ledger.accounts.key_store import KeyStore
from proxy.storage.database import open_engine, reading, sqlite_url
from tests.support.processes import CLEAN
from tests.support.recorder import Recorder
from tests.support.sqlite import empty_ledger
from tests.support.waiting import beside, until

PEPPER = b"p" * 32
NOW = 1_793_000_000.0
ANNA = new_secret().reveal()


def set_event() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


def a_key(secret: str, revision: int = 1, **differences: object) -> ApiKey:
    key = ApiKey(
        key_id=f"key-{secret[-6:]}",
        alias="anna",
        digest=digest(secret, PEPPER),
        hint=hint(secret),
        models=None,
        created_at=NOW,
        expires_at=NOW + 100,
        revoked_at=None,
        revision=revision,
    )
    return replace(key, **differences)  # type: ignore[arg-type]


def an_organization(revision: int = -2, **differences: object) -> Account:
    account = Account(
        DEFAULT_ORGANIZATION, AccountKind.ORGANIZATION, None, "default", UNLIMITED, NOW - 9, None, revision
    )
    return replace(account, **differences)  # type: ignore[arg-type]


def a_project(revision: int = -1, **differences: object) -> Account:
    account = Account(
        DEFAULT_PROJECT, AccountKind.PROJECT, DEFAULT_ORGANIZATION, "default", UNLIMITED, NOW - 8, None, revision
    )
    return replace(account, **differences)  # type: ignore[arg-type]


@dataclass
class Keys:
    """Keys in memory; counts how often it is asked, and can be slow or away. The default accounts come every time."""

    rows: list[ApiKey] = field(default_factory=list)
    accounts: list[Account] = field(default_factory=lambda: [an_organization(), a_project()])
    away: bool = False
    free: threading.Event = field(default_factory=set_event)
    """unset: it is slow"""
    unseen: int = 0
    """so many readings from now on began before `rows` were there"""
    page: int = 1_000
    asked_at: list[float] = field(default_factory=list)

    @property
    def asked(self) -> int:
        return len(self.asked_at)

    def latest(self, keys_max: int) -> KeyChanges:
        self._ask()
        seen = self._seen()
        rows = sorted(seen, key=lambda row: row.revision)[-keys_max:]
        return KeyChanges([*self.accounts, *rows], max((row.revision for row in seen), default=0), behind=False)

    def changes_since(
        self, revision: int, digests: Collection[bytes] = (), key_ids: Collection[str] = ()
    ) -> KeyChanges:
        self._ask()
        seen = self._seen()
        later = sorted((row for row in seen if row.revision > revision), key=lambda row: row.revision)
        page = later[: self.page]
        found = [row for row in seen if {row.digest, row.old_digest} & set(digests) or row.key_id in key_ids]
        until = page[-1].revision if page else revision
        return KeyChanges([*self.accounts, *page, *found], until, behind=len(page) == self.page)

    def with_ids(self, key_ids: Collection[str]) -> list[ApiKey]:
        return [row for row in self.rows if row.key_id in key_ids]

    def _ask(self) -> None:
        self.asked_at.append(time.monotonic())
        assert self.free.wait(10)
        if self.away:
            raise OSError("the database is away")

    def _seen(self) -> list[ApiKey]:
        if self.unseen:
            self.unseen -= 1
            return []
        return self.rows

    async def until_asked(self, times: int) -> None:
        await until(lambda: self.asked >= times)


def a_keyring(source: KeyStore, outages: Recorder | None = None) -> Keyring:
    return Keyring(source, pepper=PEPPER, unix_time=lambda: NOW, observer=outages or Recorder())


async def read(source: Keys) -> tuple[Keys, Keyring]:
    """A source, and a keyring that has read it."""
    keyring = a_keyring(source)
    await keyring.refresh()
    return source, keyring


async def test_each_answer() -> None:
    gone, late = new_secret().reveal(), new_secret().reveal()
    source, keyring = await read(
        Keys([a_key(ANNA), a_key(gone, 2, revoked_at=NOW - 1), a_key(late, 3, expires_at=NOW)])
    )
    assert keyring.authenticate(ANNA, NOW) == source.rows[0]
    assert keyring.authenticate(ANNA, NOW + 100) is Refused.EXPIRED
    assert keyring.authenticate(None, NOW) is Refused.MISSING
    assert keyring.authenticate("", NOW) is Refused.MISSING
    assert keyring.authenticate(gone, NOW) is Refused.REVOKED
    assert keyring.authenticate(late, NOW) is Refused.EXPIRED
    assert keyring.authenticate(new_secret().reveal(), NOW) is Refused.UNKNOWN
    for malformed in ("sk-abc", ANNA + "\n", ANNA[:-1], ANNA.upper(), "' OR 1=1 --", "tw-" + "é" * 43, "\ud800" * 46):
        assert keyring.authenticate(malformed, NOW) is Refused.MALFORMED


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look-ups as often as a test wants."""
    monkeypatch.setattr(module, "LOOKUP_INTERVAL_S", 0.0)


async def test_a_key_that_is_made_while_the_source_is_read_is_found_at_its_first_request() -> None:
    """That reading began too early to have it."""
    source = Keys(free=threading.Event())
    keyring = a_keyring(source)
    refreshing = asyncio.gather(keyring.refresh())
    await source.until_asked(1)
    asked = asyncio.gather(*(keyring.key(ANNA, "192.0.2.1") for _ in range(3)))
    await asyncio.sleep(0)
    source.rows = [a_key(ANNA)]
    source.unseen = 1
    source.free.set()
    assert await asked == source.rows * 3
    await refreshing
    assert source.asked == 2


async def test_a_burst_with_a_new_key_is_one_look_up_and_no_guess() -> None:
    source, keyring = await read(Keys())
    source.rows.append(a_key(ANNA))
    answers = await asyncio.gather(*(keyring.key(ANNA, "192.0.2.1") for _ in range(10 * GUESSES_MAX)))
    assert answers == source.rows * len(answers)
    assert source.asked == 2
    assert keyring.retry_after_s("192.0.2.1") == 0


async def test_many_at_once_with_one_key_that_is_none_are_one_guess(hurried: None) -> None:
    keyring = a_keyring(Keys())
    for _ in range(GUESSES_MAX):
        assert keyring.retry_after_s("192.0.2.1") == 0
        answers = await asyncio.gather(*(keyring.key(ANNA, "192.0.2.1") for _ in range(3)))
        assert set(answers) == {Refused.UNKNOWN}
    assert await keyring.key(ANNA, "192.0.2.1") is Refused.TOO_MANY


async def test_a_client_that_leaves_takes_its_look_up_from_nobody(hurried: None) -> None:
    source, keyring = await read(Keys())
    source.free.clear()
    async with asyncio.TaskGroup() as tasks:
        first, other = (tasks.create_task(keyring.key(ANNA, "192.0.2.1")) for _ in range(2))
        await source.until_asked(2)
        first.cancel()
        source.rows = [a_key(ANNA)]
        source.free.set()
    assert other.result() == source.rows[0]
    assert source.asked == 2


async def test_unknown_keys_share_their_look_ups_and_malformed_ones_have_none() -> None:
    source, keyring = await read(Keys())
    for _ in range(3):
        answers = await asyncio.gather(*(keyring.key(new_secret().reveal()) for _ in range(500)))
        assert set(answers) == {Refused.UNKNOWN}
    assert source.asked == 1 + 3
    assert await keyring.key("tw-short") is Refused.MALFORMED
    assert source.asked == 1 + 3


async def test_look_ups_are_apart_from_one_another_and_from_other_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOKUP_INTERVAL_S", 0.4)
    source = Keys()
    keyring = a_keyring(source)
    for _ in range(3):
        await keyring.refresh()
        await keyring.key(new_secret().reveal())
    gaps = [later - earlier for earlier, later in pairwise(source.asked_at)]
    assert len(gaps) == 5
    assert min(gaps[::2]) > module.LOOKUP_INTERVAL_S / 2


async def test_a_refresh_has_what_was_changed_before_it() -> None:
    source = Keys([a_key(ANNA)], free=threading.Event())
    keyring = a_keyring(source)
    polled = asyncio.gather(keyring.refresh())
    await source.until_asked(1)
    source.rows, source.unseen = [a_key(ANNA, 2, revoked_at=NOW)], 1
    refreshed = asyncio.gather(keyring.refresh())
    await asyncio.sleep(0)
    source.free.set()
    await asyncio.gather(polled, refreshed)
    assert keyring.authenticate(ANNA, NOW) is Refused.REVOKED


# -- blocked, rotated, and at which levels it is counted ----------------------------------------------------------


@pytest.mark.parametrize("which", ["key", "project", "organization"])
async def test_what_is_blocked_at_any_level_does_not_count(which: str) -> None:
    blocked = {"blocked_at": NOW - 1}
    source, keyring = await read(Keys([a_key(ANNA)]))
    assert isinstance(await keyring.key(ANNA), ApiKey)
    source.rows = [a_key(ANNA, 2, **(blocked if which == "key" else {}))]
    source.accounts = [
        an_organization(3, **(blocked if which == "organization" else {})),
        a_project(4, **(blocked if which == "project" else {})),
    ]
    await keyring.refresh()
    assert await keyring.key(ANNA) is Refused.BLOCKED
    assert keyring.authenticate(ANNA, NOW + 100) is Refused.EXPIRED  # which nobody can undo by unblocking
    source.rows, source.accounts = [a_key(ANNA, 5)], [an_organization(6), a_project(7)]
    await keyring.refresh()
    assert isinstance(await keyring.key(ANNA), ApiKey)


async def test_a_key_without_its_accounts_does_not_count() -> None:
    """Nobody knows what it may use."""
    for accounts in ([], [a_project()], [an_organization()]):
        _, keyring = await read(Keys([a_key(ANNA)], accounts=accounts))
        assert await keyring.key(ANNA) is Refused.BLOCKED


async def test_a_rotated_key_counts_by_both_secrets_for_a_while() -> None:
    new, newer = new_secret().reveal(), new_secret().reveal()
    source, keyring = await read(Keys([a_key(ANNA)]))
    digests = {"digest": digest(new, PEPPER), "old_digest": digest(ANNA, PEPPER)}
    source.rows = [a_key(ANNA, 2, **digests, old_until=NOW + 10)]
    await keyring.refresh()
    for secret in (ANNA, new):
        assert keyring.authenticate(secret, NOW) == source.rows[0]
    assert keyring.authenticate(ANNA, NOW + 10) is Refused.REPLACED
    assert keyring.authenticate(new, NOW + 10) == source.rows[0]
    digests = {"digest": digest(newer, PEPPER), "old_digest": digest(new, PEPPER)}
    source.rows = [a_key(ANNA, 3, **digests, old_until=NOW)]
    await keyring.refresh()
    assert keyring.authenticate(ANNA, NOW) is Refused.UNKNOWN
    assert keyring.authenticate(new, NOW) is Refused.REPLACED
    assert keyring.authenticate(newer, NOW) == source.rows[0]


def narrowed(key: ApiKey, *caveats: str) -> str:
    return narrowed_text(narrowable(key.key_id, key.digest, PEPPER), caveats)


async def test_a_narrowed_key_ends_with_its_parent() -> None:
    parent = a_key(ANNA, models=frozenset({"a", "b"}))
    source, keyring = await read(Keys([parent]))
    child = narrowed(parent, "models=b,c", f"expires={iso_utc(NOW + 50)}")
    found = await keyring.narrowed_key(child)
    assert isinstance(found, ApiKey)
    expected = replace(parent, models=frozenset({"b"}), expires_at=NOW + 50)
    assert found == replace(expected, holder=found.holder, branch_ids=found.branch_ids)
    assert await keyring.narrowed_key(child) is found, "verified once"
    assert keyring.authenticate(child, NOW) is Refused.MALFORMED, "it is nothing for those that expect a secret"
    assert await keyring.narrowed_key(narrowed(parent, f"expires={iso_utc(NOW)}")) is Refused.EXPIRED
    unknown = narrowing.parse(narrowable(parent.key_id, parent.digest, PEPPER))
    assert unknown is not None
    signature = narrowing.signatures(unknown.signature, [b"admin=false"])[-1]
    text = PresentedKey(parent.key_id, (b"admin=false",), signature).text()
    assert await keyring.narrowed_key(text) is Refused.CAVEAT
    for change, refused in (
        ({"models": frozenset({"a"})}, None), ({"blocked_at": NOW}, Refused.BLOCKED),
        ({"expires_at": NOW}, Refused.EXPIRED), ({"revoked_at": NOW}, Refused.REVOKED),
    ):  # fmt: skip
        source.rows = [a_key(ANNA, source.rows[0].revision + 1, **change)]
        await keyring.refresh()
        found = await keyring.narrowed_key(child)
        assert found is refused or (isinstance(found, ApiKey) and not found.allows("b") and not found.allows("a"))


async def test_a_key_that_is_narrowed_from_an_old_secret_ends_with_it(hurried: None) -> None:
    parent = a_key(ANNA)
    child = narrowed(parent, "models=a")
    digests = {"digest": digest(new_secret().reveal(), PEPPER), "old_digest": parent.digest}
    source, keyring = await read(Keys([a_key(ANNA, 2, **digests, old_until=NOW + 10)]))
    found = await keyring.narrowed_key(child)
    assert isinstance(found, ApiKey)
    assert found.expires_at == NOW + 10
    source.rows = [a_key(ANNA, 3, **digests, old_until=NOW)]
    await keyring.refresh()
    assert await keyring.narrowed_key(child) is Refused.EXPIRED
    source.rows = [a_key(ANNA, 4, digest=digest(new_secret().reveal(), PEPPER))]
    new = narrowed(source.rows[0], "run=1")
    assert isinstance(await keyring.narrowed_key(new), ApiKey), "a new secret is looked up"
    assert await keyring.narrowed_key(child) is Refused.UNKNOWN


async def test_the_parent_of_a_narrowed_key_is_looked_up_and_forgeries_are_guesses(
    few: list[str], hurried: None
) -> None:
    keys = [a_key(secret, number) for number, secret in enumerate(few, 1)]
    source, keyring = await read(Keys(list(keys)))
    assert keyring.known(keys[0].key_id) is None
    assert isinstance(await keyring.narrowed_key(narrowed(keys[0], "models=a"), "192.0.2.1"), ApiKey)
    forged = narrowable(keys[0].key_id, b"other", PEPPER)
    answers = [await keyring.narrowed_key(forged, "192.0.2.1") for _ in range(GUESSES_MAX + 1)]
    assert answers == [*[Refused.UNKNOWN] * GUESSES_MAX, Refused.TOO_MANY]
    assert isinstance(await keyring.narrowed_key(narrowed(keys[0], "models=a"), "192.0.2.1"), ApiKey), "a known parent"
    source.away = True
    assert await keyring.narrowed_key(forged) is Refused.UNAVAILABLE
    assert await keyring.narrowed_key("tw-key.x") is Refused.MALFORMED


async def test_the_key_of_an_identity_cannot_be_narrowed(hurried: None) -> None:
    parent = a_key(ANNA, key_id=f"{IDENTITY_KEYS}ci_proj")
    _, keyring = await read(Keys([parent]))
    assert await keyring.narrowed_key(narrowed(parent, "models=a")) is Refused.UNKNOWN


async def test_the_levels_that_limit_anything_are_those_of_now() -> None:
    source, keyring = await read(Keys([a_key(ANNA)]))
    key = source.rows[0]
    assert keyring.scopes(key) == ()
    source.rows = [a_key(ANNA, 2, limits=Limits(rpm=3))]
    source.accounts = [an_organization(3, limits=Limits(parallel=5)), a_project(4)]
    await keyring.refresh()
    # Also for a request that began with the key as it was.
    assert [(one.scope_id, one.limits, one.created_at) for one in keyring.scopes(key)] == [
        (key.key_id, Limits(rpm=3), NOW),
        (DEFAULT_ORGANIZATION, Limits(parallel=5), NOW - 9),
    ]
    assert keyring.scopes(key) is keyring.scopes(source.rows[0])
    source.accounts = [an_organization(), a_project(5, limits=Limits(prepaid=True))]
    await keyring.refresh()
    assert [(one.scope_id, one.limits.spends) for one in keyring.scopes(key)] == [
        (key.key_id, False),
        (DEFAULT_PROJECT, True),
    ]


# -- more keys than are kept in memory -----------------------------------------------------------------------------


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ten secrets, of which a keyring keeps three."""
    monkeypatch.setattr(module, "KEYS_MAX", 3)
    return [new_secret().reveal() for _ in range(10)]


async def test_so_many_keys_are_kept_and_any_other_is_looked_up(few: list[str], hurried: None) -> None:
    source, keyring = await read(Keys([a_key(secret, number + 1) for number, secret in enumerate(few)]))
    for secret, key in zip(few[-3:], source.rows[-3:], strict=True):  # those that changed last are there
        assert keyring.authenticate(secret, NOW) is key
    asked = source.asked
    for secret, key in zip(few, source.rows, strict=True):
        for _ in range(2):  # the second time from memory
            assert await keyring.key(secret, "192.0.2.1") is key
            keyring.scopes(key)
    assert source.asked == asked + 10  # the last three have made way
    kept = keyring._by_id, keyring._by_digest, keyring._accesses
    assert [len(one) for one in kept] == [3, 3, 3]
    assert keyring.retry_after_s("192.0.2.1") == 0


async def test_who_asks_often_is_kept(few: list[str], hurried: None) -> None:
    source, keyring = await read(Keys([a_key(secret, number + 1) for number, secret in enumerate(few)]))
    for secret in few[:7]:
        await keyring.key(few[9])
        await keyring.key(secret)
    assert keyring.authenticate(few[9], NOW) is source.rows[9]
    assert keyring.authenticate(few[8], NOW) is Refused.UNKNOWN


async def test_a_key_that_is_not_kept_counts_by_both_secrets_and_is_refused_for_its_reason(
    few: list[str], hurried: None
) -> None:
    source = Keys([a_key(secret, number + 1) for number, secret in enumerate(few)])
    old = new_secret().reveal()
    source.rows[0] = a_key(few[0], 1, old_digest=digest(old, PEPPER), old_until=NOW + 10)
    source.rows[1] = a_key(few[1], 2, revoked_at=NOW - 1)
    keyring = a_keyring(source)
    await keyring.refresh()
    assert await keyring.key(old, "192.0.2.1") is source.rows[0]
    for _ in range(2 * GUESSES_MAX):
        assert await keyring.key(few[1], "192.0.2.1") is Refused.REVOKED
    assert keyring.retry_after_s("192.0.2.1") == 0
    source.away = True
    assert await keyring.key(few[3]) is Refused.UNAVAILABLE
    assert await keyring.key(old) is source.rows[0]


async def test_a_change_of_a_key_that_is_not_kept_counts(few: list[str], hurried: None) -> None:
    source, keyring = await read(Keys([a_key(secret, number + 1) for number, secret in enumerate(few)]))
    source.rows[0] = a_key(few[0], 11, revoked_at=NOW)
    assert await keyring.key(few[0]) is Refused.REVOKED
    source.rows[1] = a_key(few[1], 12, revoked_at=NOW)
    await keyring.refresh()
    assert keyring.authenticate(few[1], NOW) is Refused.REVOKED


async def test_a_reading_is_continued_until_it_has_all_changes(few: list[str]) -> None:
    source, keyring = await read(Keys(page=2))
    source.rows = [a_key(secret, number + 1) for number, secret in enumerate(few)]
    await keyring.refresh()
    assert keyring.authenticate(few[9], NOW) is source.rows[9]
    assert source.asked == 1 + 6  # five whole pages, and one without a change


async def test_a_key_is_looked_up_though_nothing_could_be_read_before(few: list[str]) -> None:
    source, keyring = await read(Keys([a_key(secret, number + 1) for number, secret in enumerate(few)], away=True))
    source.away = False
    assert await keyring.key(few[0]) is source.rows[0]


async def test_keys_are_remembered_by_their_ids(few: list[str]) -> None:
    source, keyring = await read(Keys([a_key(secret, number + 1) for number, secret in enumerate(few)]))
    assert keyring.known(source.rows[0].key_id) is None
    await keyring.remember({source.rows[0].key_id, "unknown"})
    assert keyring.known(source.rows[0].key_id) is source.rows[0]


async def test_a_key_that_is_remembered_comes_with_its_accounts(few: list[str]) -> None:
    source, keyring = await read(Keys([a_key(secret, number + 1) for number, secret in enumerate(few)], away=True))
    source.away = False
    await keyring.remember({source.rows[0].key_id})
    assert keyring.authenticate(few[0], NOW) is source.rows[0]  # it is not blocked
    newer = a_project(8, account_id="proj_new")
    source.accounts.append(newer)
    source.rows.append(a_key(ANNA, 9, project_id="proj_new"))
    await keyring.remember({source.rows[-1].key_id})
    assert keyring.authenticate(ANNA, NOW) is source.rows[-1]


async def test_who_cannot_read_the_keys_at_first_does_not_start(few: list[str]) -> None:
    source = Keys([a_key(secret, number + 1) for number, secret in enumerate(few)], away=True)
    with pytest.raises(OSError):
        await a_keyring(source).start()
    source.away = False
    keyring = a_keyring(source)
    await keyring.start()
    assert keyring.authenticate(ANNA, NOW) is Refused.UNKNOWN
    assert keyring.authenticate(few[-1], NOW) is source.rows[-1]


# -- guesses ------------------------------------------------------------------------------------------------------


async def test_two_thousand_guesses_of_an_address_are_twenty_and_a_key_from_there_passes(hurried: None) -> None:
    source, keyring = await read(Keys([a_key(ANNA)]))
    answers: list[ApiKey | Refused] = []
    for number in range(2_000):
        answers.append(await keyring.key(new_secret().reveal() if number % 2 else "tw-short", "192.0.2.1"))
        if number % 200 == 0:
            assert isinstance(await keyring.key(ANNA, "192.0.2.1"), ApiKey)
    assert source.asked == 1 + GUESSES_MAX // 2
    assert set(answers[:GUESSES_MAX]) == {Refused.UNKNOWN, Refused.MALFORMED}
    assert set(answers[GUESSES_MAX:]) == {Refused.TOO_MANY}
    assert 0 < keyring.retry_after_s("192.0.2.1") <= 60
    assert keyring.retry_after_s("192.0.2.2") == keyring.retry_after_s(None) == 0
    assert await keyring.key("tw-short", "192.0.2.2") is Refused.MALFORMED
    assert await keyring.key(None, "192.0.2.1") is Refused.MISSING


async def test_a_flood_of_guesses_keeps_no_new_key_of_another_address_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOKUP_S_MAX", 60.0)  # however slow this machine is
    source, keyring = await read(Keys())
    began = time.monotonic()
    flood = [keyring.key(new_secret().reveal(), f"10.0.{number // 250}.{number % 250}") for number in range(1_000)]
    source.rows.append(a_key(ANNA))
    *guesses, found = await asyncio.gather(*flood, keyring.key(ANNA, "192.0.2.1"))
    assert found == source.rows[0]
    assert set(guesses) == {Refused.UNKNOWN}
    assert source.asked <= 2 + (time.monotonic() - began) / module.LOOKUP_INTERVAL_S


async def test_guesses_at_once_are_not_more_than_one_after_another() -> None:
    keyring = a_keyring(Keys())
    answers = await asyncio.gather(*(keyring.key(new_secret().reveal(), "192.0.2.1") for _ in range(100)))
    assert answers.count(Refused.UNKNOWN) == GUESSES_MAX
    assert answers.count(Refused.TOO_MANY) == 100 - GUESSES_MAX


async def test_any_number_of_new_keys_at_once_is_no_guess() -> None:
    """Of one address: a deployment that has just been given its keys."""
    source, keyring = await read(Keys())
    made = [new_secret().reveal() for _ in range(10 * GUESSES_MAX)]
    source.rows = [a_key(secret, number + 1) for number, secret in enumerate(made)]
    answers = await asyncio.gather(*(keyring.key(secret, "192.0.2.1") for secret in made for _ in range(3)))
    assert answers == [row for row in source.rows for _ in range(3)]
    assert keyring.retry_after_s("192.0.2.1") == 0


async def test_new_keys_among_guesses_are_found_until_the_guesses_are_too_many() -> None:
    source = Keys([a_key(ANNA)])
    keyring = a_keyring(source)
    guesses = [keyring.key(new_secret().reveal(), "192.0.2.1") for _ in range(GUESSES_MAX - 1)]
    *_, found, last, late = await asyncio.gather(
        *guesses,
        keyring.key(ANNA, "192.0.2.1"),
        *(keyring.key(new_secret().reveal(), "192.0.2.1") for _ in range(2)),
    )
    assert found is source.rows[0]
    assert {last, late} == {Refused.UNKNOWN, Refused.TOO_MANY}


async def test_a_guess_whose_client_leaves_counts() -> None:
    source = Keys(free=threading.Event())
    keyring = a_keyring(source)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(GUESSES_MAX):
            tasks.create_task(keyring.key(new_secret().reveal(), "192.0.2.1")).cancel()
            await asyncio.sleep(0)
        left = [tasks.create_task(keyring.key(new_secret().reveal(), "192.0.2.2")) for _ in range(GUESSES_MAX)]
        await source.until_asked(1)
        for one in left:
            one.cancel()
        source.free.set()
    assert await keyring.key(new_secret().reveal(), "192.0.2.2") is Refused.TOO_MANY


async def test_an_outage_makes_no_guesses_of_keys(hurried: None) -> None:
    source = Keys(away=True)
    keyring = a_keyring(source)
    secrets_ = [new_secret().reveal() for _ in range(3 * GUESSES_MAX)]
    answers = [await keyring.key(secret, "192.0.2.1") for secret in secrets_]
    assert set(answers) == {Refused.UNAVAILABLE}
    source.away, source.rows = False, [a_key(ANNA)]
    assert await keyring.key(ANNA, "192.0.2.1") is source.rows[0]


async def test_a_new_key_is_no_guess(hurried: None) -> None:
    source = Keys()
    keyring = a_keyring(source)
    for number in range(GUESSES_MAX + 5):
        secret = new_secret().reveal()
        source.rows = [a_key(secret, number + 1)]
        assert await keyring.key(secret, "192.0.2.1") == source.rows[0]
    assert keyring.retry_after_s("192.0.2.1") == 0


async def test_from_a_limited_address_a_new_key_counts_with_the_next_poll() -> None:
    source = Keys()
    keyring = a_keyring(source)
    for _ in range(GUESSES_MAX):
        await keyring.key("tw-short", "192.0.2.1")
    source.rows = [a_key(ANNA)]
    assert await keyring.key(ANNA, "192.0.2.1") is Refused.TOO_MANY
    await keyring.refresh()
    assert await keyring.key(ANNA, "192.0.2.1") == source.rows[0]


async def test_keys_that_were_some_are_no_guesses() -> None:
    """Who has an old key has a client to set up, and nothing to guess."""
    gone, late = new_secret().reveal(), new_secret().reveal()
    _, keyring = await read(
        Keys([a_key(gone, 2, revoked_at=NOW - 1), a_key(late, 3, expires_at=NOW), a_key(ANNA, 4, blocked_at=NOW)])
    )
    for _ in range(GUESSES_MAX):
        answers = [await keyring.key(secret, "192.0.2.1") for secret in (gone, late, ANNA, None)]
        assert answers == [Refused.REVOKED, Refused.EXPIRED, Refused.BLOCKED, Refused.MISSING]
    assert keyring.retry_after_s("192.0.2.1") == 0


async def test_a_source_that_is_away_leaves_known_keys_as_they_are() -> None:
    source, outages = Keys([a_key(ANNA)]), Recorder()
    keyring = a_keyring(source, outages)
    await keyring.refresh()
    source.away = True
    await keyring.refresh()
    await keyring.refresh()
    assert [str(error) for error in outages.failures] == ["the database is away"]
    assert isinstance(await keyring.key(ANNA), ApiKey)
    assert await keyring.key(new_secret().reveal()) is Refused.UNAVAILABLE  # it may be a key
    source.away = False
    assert await keyring.key(new_secret().reveal()) is Refused.UNKNOWN
    source.rows[0] = a_key(ANNA, 2, revoked_at=NOW)
    await keyring.refresh()
    assert outages.healings == outages.failures
    assert await keyring.key(ANNA) is Refused.REVOKED


async def test_a_source_that_hangs_holds_up_nobody_whose_key_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOKUP_S_MAX", 0.1)
    source, keyring = await read(Keys([a_key(ANNA)]))
    source.free.clear()
    async with beside(keyring.run()):
        await source.until_asked(2)
        strangers = await asyncio.gather(*(keyring.key(new_secret().reveal()) for _ in range(20)))
        assert set(strangers) == {Refused.UNAVAILABLE}
        assert isinstance(await keyring.key(ANNA), ApiKey)
        assert source.asked == 2  # all of them waited for the same one
        source.free.set()


async def test_a_read_that_had_not_begun_when_the_keyring_closed_is_no_bug() -> None:
    source = Keys([a_key(ANNA)])
    keyring, bugs = a_keyring(source), list[dict[str, object]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: bugs.append(context))
    release = threading.Event()
    keyring._thread.run(release.wait, 10)  # as a look-up by ids that takes long
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        tasks.create_task(keyring.refresh())
        await asyncio.sleep(0)
        threading.Timer(0.05, release.set).start()
        keyring.close()
    assert bugs == []


def test_an_empty_pepper_is_our_bug() -> None:
    with pytest.raises(AssertionError):
        Keyring(Keys(), pepper=b"", unix_time=time.time, observer=Recorder())


def test_the_allow_list() -> None:
    assert a_key(ANNA).allows("anything")
    assert a_key(ANNA, models=frozenset({"a"})).allows("a")
    assert not a_key(ANNA, models=frozenset({"a"})).allows("A")
    assert not a_key(ANNA, models=frozenset()).allows("a")


def test_a_key_does_not_show_its_digest() -> None:
    assert digest(ANNA, PEPPER).hex() not in repr(a_key(ANNA))
    assert repr(digest(ANNA, PEPPER)) not in repr(a_key(ANNA))


def test_expiry() -> None:
    assert expires_at_from("never", NOW) is None
    for text, seconds in (("90d", 90 * 86_400), ("12h", 43_200), ("30m", 1_800), ("2w", 1_209_600)):
        assert expires_at_from(text, NOW) == NOW + seconds
    for text in ("", "0d", "90", "-1d", "3651d", "1.5d", "Never", "90D", "inf"):
        with pytest.raises(ValueError, match=r"duration|ten years"):
            expires_at_from(text, NOW)


def test_expiry_at_a_date() -> None:
    now = 1_790_000_000.0  # 2026-09-21
    assert expires_at_from("2026-11-01", now) == 1_793_491_200.0
    assert expires_at_from("2026-11-01T01:00:00+01:00", now) == 1_793_491_200.0
    for text in ("2026-09-21", "1999-01-01", "2036-10-01", "2026-13-01", "01.11.2026"):
        with pytest.raises(ValueError, match=r"a date: 2027-01-31|not in the next ten years"):
            expires_at_from(text, now)
    with pytest.raises(ValueError, match="within 30 days"):
        expires_at_from("2026-11-01", now, longest_s=30 * 86_400)


# -- the same through the ledger's file, changed by another process


def _create(keys: KeyStore, secret: str) -> None:
    keys.create(
        key_id="key-" + secrets.token_hex(4),
        alias=secret[-8:],
        digest=digest(secret, PEPPER),
        hint=hint(secret),
        models=None,
        expires_at=None,
    )


def _change(file: Path, orders: Connection) -> None:
    """Another process: makes and revokes keys as it is told."""
    keys = KeyStore(open_engine(sqlite_url(file)), clock=time.time)
    orders.send("up")
    while (order := orders.recv()) is not None:
        change, secret = order
        if change == "create":
            _create(keys, secret)
        else:
            keys.revoke(secret[-8:])
        orders.send("done")


@pytest.mark.process
async def test_a_key_made_by_another_process_counts_at_once_and_its_revocation_within_a_second(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    engine = open_engine(empty_ledger(file))
    outages = Recorder()
    keyring = Keyring(KeyStore(engine, clock=time.time), pepper=PEPPER, unix_time=time.time, observer=outages)
    secret = new_secret().reveal()
    ours, theirs = CLEAN.Pipe()
    child = CLEAN.Process(target=_change, args=(file, theirs))
    child.start()

    async def told(*order: str) -> None:
        ours.send(order)
        assert await asyncio.to_thread(ours.recv) == "done"

    async with beside(keyring.run()):
        assert await asyncio.to_thread(ours.recv) == "up"
        assert await keyring.key(secret) is Refused.UNKNOWN
        await told("create", secret)
        assert isinstance(await keyring.key(secret), ApiKey)  # at once
        await told("revoke", secret)
        async with asyncio.timeout(10):  # by a poll; on a machine that has nothing else to do within POLL_S
            while await keyring.key(secret) is not Refused.REVOKED:
                await asyncio.sleep(0.01)
    assert module.POLL_S <= 0.5
    ours.send(None)
    await asyncio.to_thread(child.join, 20)
    assert outages.failures == []
    assert child.exitcode == 0
    ours.close()
    theirs.close()
    engine.dispose()


@pytest.mark.io
async def test_no_file_of_the_ledger_holds_a_secret(tmp_path: Path) -> None:
    engine = open_engine(empty_ledger(tmp_path / "ledger.db"))
    secret = new_secret().reveal()
    _create(KeyStore(engine, clock=time.time), secret)
    with reading(engine) as connection:
        (row,) = connection.exec_driver_sql("SELECT * FROM api_keys").all()
    engine.dispose()
    assert secret[3:] not in repr(row)
    for kept in tmp_path.iterdir():
        assert secret[3:20].encode() not in kept.read_bytes(), kept
