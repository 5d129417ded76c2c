"""Keys in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from sqlalchemy import Engine

from proxy.billing.keys import ApiKey
from proxy.ledger.key_store import AliasTakenError, KeyStore, UnknownKeyError


@dataclass
class Clock:
    now: float = 1_793_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keys(engine: Engine, clock: Clock) -> KeyStore:
    return KeyStore(engine, clock=clock)


def make(
    keys: KeyStore, number: int, alias: str, *, models: Sequence[str] | None = None, expires_at: float | None = None
) -> ApiKey:
    return keys.create(
        key_id=f"key-{number}",
        alias=alias,
        digest=bytes([number]) * 32,
        hint="tw-…abcd",
        models=models,
        expires_at=expires_at,
    )


def test_a_key_comes_back_as_it_was_made(keys: KeyStore, clock: Clock) -> None:
    made = [
        make(keys, 1, "anna"),
        make(keys, 2, "bert", models=["b", "a"], expires_at=clock.now + 5),
        make(keys, 3, "c", models=[]),
    ]
    assert keys.every() == made
    assert [key.models for key in made] == [None, frozenset("ab"), frozenset()]
    assert [key.revision for key in made] == [1, 2, 3]


def test_changes_since_a_revision_in_their_order(keys: KeyStore) -> None:
    first, second = make(keys, 1, "anna"), make(keys, 2, "bert")
    assert keys.changes_since(0) == [first, second]
    assert keys.changes_since(2) == []
    revoked = keys.revoke("key-1")
    assert revoked.revision == 3
    assert keys.changes_since(2) == [revoked]
    assert keys.changes_since(1) == [second, revoked]


def test_an_alias_belongs_to_one_live_key(keys: KeyStore, clock: Clock) -> None:
    make(keys, 1, "anna", expires_at=clock.now + 10)
    with pytest.raises(AliasTakenError, match="anna"):
        make(keys, 2, "anna")
    clock.now += 10
    make(keys, 3, "anna")  # the first has expired
    keys.revoke("anna")
    make(keys, 4, "anna")
    assert [key.key_id for key in keys.every() if key.live(clock.now)] == ["key-4"]


def test_revoking_by_id_or_alias_and_again(keys: KeyStore, clock: Clock) -> None:
    make(keys, 1, "anna")
    assert keys.revoke("anna").revoked_at == clock.now
    clock.now += 1
    again = keys.revoke("key-1")
    assert (again.revoked_at, again.revision) == (clock.now - 1, 2)
    with pytest.raises(UnknownKeyError, match="anna"):
        keys.revoke("anna")
    with pytest.raises(UnknownKeyError):
        keys.revoke("key-9")


@pytest.mark.parametrize("alias", ["", "  ", "a\nb", "a\x1b[31m", "x" * 129, "\ud800"])
def test_an_alias_is_a_name(keys: KeyStore, alias: str) -> None:
    with pytest.raises(ValueError, match="alias"):
        make(keys, 1, alias)


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
    assert sorted(key.revision for key in made) == list(range(1, 7))
    assert len(keys.changes_since(0)) == 6
