"""Who may, and how fast a change counts."""

from __future__ import annotations

import asyncio
import multiprocessing
import secrets
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from proxy.billing.keys import ApiKey, expires_at_from
from proxy.keys.keyring import Keyring, KeySource, Refused
from proxy.keys.secrets import digest, hint, new_secret
from proxy.ledger.database import open_engine, reading, sqlite_url
from proxy.ledger.key_store import KeyStore
from proxy.ledger.migrate import migrate

PEPPER = b"p" * 32
NOW = 1_793_000_000.0
ANNA = new_secret().reveal()


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


@dataclass
class Keys:
    """Keys in memory; counts how often it is asked, and can be slow or away."""

    rows: list[ApiKey] = field(default_factory=list)
    asked: int = 0
    away: bool = False
    hold: threading.Event | None = None

    def changes_since(self, revision: int) -> list[ApiKey]:
        self.asked += 1
        if self.hold is not None:
            assert self.hold.wait(10)
        if self.away:
            raise OSError("the database is away")
        return [row for row in self.rows if row.revision > revision]


def a_keyring(source: KeySource, failures: list[OSError] | None = None) -> Keyring:
    told = [] if failures is None else failures
    return Keyring(source, pepper=PEPPER, unix_time=lambda: NOW, on_failure=told.append)


@asynccontextmanager
async def polling(keyring: Keyring) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(keyring.run())
        yield
        task.cancel()


async def test_each_answer() -> None:
    gone, late = new_secret().reveal(), new_secret().reveal()
    source = Keys([a_key(ANNA), a_key(gone, 2, revoked_at=NOW - 1), a_key(late, 3, expires_at=NOW)])
    keyring = a_keyring(source)
    await keyring.refresh()
    assert keyring.authenticate(ANNA, NOW) == source.rows[0]
    assert keyring.authenticate(ANNA, NOW + 100) is Refused.EXPIRED
    assert keyring.authenticate(None, NOW) is Refused.MISSING
    assert keyring.authenticate("", NOW) is Refused.MISSING
    assert keyring.authenticate(gone, NOW) is Refused.REVOKED
    assert keyring.authenticate(late, NOW) is Refused.EXPIRED
    assert keyring.authenticate(new_secret().reveal(), NOW) is Refused.UNKNOWN
    for malformed in ("sk-abc", ANNA + "\n", ANNA[:-1], ANNA.upper(), "' OR 1=1 --", "tw-" + "é" * 43, "\ud800" * 46):
        assert keyring.authenticate(malformed, NOW) is Refused.MALFORMED


async def test_a_change_of_a_known_key_counts() -> None:
    source = Keys([a_key(ANNA)])
    keyring = a_keyring(source)
    await keyring.refresh()
    source.rows[0] = a_key(ANNA, 2, revoked_at=NOW)
    assert isinstance(keyring.authenticate(ANNA, NOW), ApiKey)
    await keyring.refresh()
    assert keyring.authenticate(ANNA, NOW) is Refused.REVOKED


async def test_a_new_key_is_found_at_its_first_request() -> None:
    source = Keys()
    keyring = a_keyring(source)
    await keyring.refresh()
    await asyncio.sleep(0.11)
    source.rows.append(a_key(ANNA))
    assert await keyring.key(ANNA) == source.rows[0]


async def test_guesses_do_not_cost_a_look_each_and_malformed_ones_none() -> None:
    source = Keys()
    keyring = a_keyring(source)
    began = time.perf_counter()
    for _ in range(200):
        assert await keyring.key(new_secret().reveal()) is Refused.UNKNOWN
    await asyncio.gather(*(keyring.key(new_secret().reveal()) for _ in range(200)))
    assert 1 <= source.asked <= 2 + (time.perf_counter() - began) / 0.1
    before = source.asked
    await asyncio.sleep(0.11)
    assert await keyring.key("tw-short") is Refused.MALFORMED
    assert source.asked == before


async def test_a_source_that_is_away_leaves_known_keys_as_they_are() -> None:
    source, failures = Keys([a_key(ANNA)]), list[OSError]()
    keyring = a_keyring(source, failures)
    await keyring.refresh()
    source.away = True
    await keyring.refresh()
    assert len(failures) == 1
    assert isinstance(await keyring.key(ANNA), ApiKey)
    await asyncio.sleep(0.11)
    assert await keyring.key(new_secret().reveal()) is Refused.UNKNOWN
    source.away = False
    source.rows[0] = a_key(ANNA, 2, revoked_at=NOW)
    await keyring.refresh()
    assert await keyring.key(ANNA) is Refused.REVOKED


async def test_a_source_that_hangs_holds_up_nobody_whose_key_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.keys.keyring.EARLY_REFRESH_S_MAX", 0.1)
    source = Keys([a_key(ANNA)])
    keyring = a_keyring(source)
    await keyring.refresh()
    source.hold = threading.Event()
    async with polling(keyring):
        await asyncio.sleep(0.11)
        began = time.perf_counter()
        assert isinstance(await keyring.key(ANNA), ApiKey)
        strangers = await asyncio.gather(*(keyring.key(new_secret().reveal()) for _ in range(20)))
        assert set(strangers) == {Refused.UNKNOWN}
        assert time.perf_counter() - began < 1
        assert source.asked == 2  # all of them waited for the same one
        source.hold.set()


def test_an_empty_pepper_is_our_bug() -> None:
    with pytest.raises(AssertionError):
        Keyring(Keys(), pepper=b"", unix_time=time.time, on_failure=print)


def test_the_allow_list() -> None:
    assert a_key(ANNA).allows("anything")
    assert a_key(ANNA, models=frozenset({"a"})).allows("a")
    assert not a_key(ANNA, models=frozenset({"a"})).allows("A")
    assert not a_key(ANNA, models=frozenset()).allows("a")


def test_a_key_does_not_show_its_digest() -> None:
    assert digest(ANNA, PEPPER).hex() not in repr(a_key(ANNA))
    assert repr(digest(ANNA, PEPPER)) not in repr(a_key(ANNA))


@pytest.mark.parametrize(
    ("text", "seconds"), [("90d", 90 * 86_400), ("12h", 43_200), ("30m", 1_800), ("2w", 1_209_600)]
)
def test_expiry(text: str, seconds: int) -> None:
    assert expires_at_from(text, NOW) == NOW + seconds


def test_expiry_never_and_nonsense() -> None:
    assert expires_at_from("never", NOW) is None
    for text in ("", "0d", "90", "-1d", "3651d", "1.5d", "Never", "90D", "inf"):
        with pytest.raises(ValueError, match=r"duration|ten years"):
            expires_at_from(text, NOW)


# -- the same through the ledger's file, changed by another process


def _create(file: Path, secret: str) -> None:
    KeyStore(open_engine(sqlite_url(file)), clock=time.time).create(
        key_id="key-" + secrets.token_hex(4),
        alias=secret[-8:],
        digest=digest(secret, PEPPER),
        hint=hint(secret),
        models=None,
        expires_at=None,
    )


def _revoke(file: Path, secret: str) -> None:
    KeyStore(open_engine(sqlite_url(file)), clock=time.time).revoke(secret[-8:])


def _change(file: Path, orders: Connection) -> None:
    """Another process: makes and revokes keys as it is told."""
    orders.send("up")
    while (order := orders.recv()) is not None:
        change, secret = order
        {"create": _create, "revoke": _revoke}[change](file, secret)
        orders.send("done")


def _unexpected(error: OSError) -> None:
    raise AssertionError from error


async def test_a_key_made_or_revoked_by_another_process_counts_within_a_second(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    migrate(sqlite_url(file))
    engine = open_engine(sqlite_url(file))
    keyring = Keyring(KeyStore(engine, clock=time.time), pepper=PEPPER, unix_time=time.time, on_failure=_unexpected)
    secret = new_secret().reveal()
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    child = spawn.Process(target=_change, args=(file, theirs))
    child.start()

    async def told(*order: str) -> None:
        ours.send(order)
        assert await asyncio.to_thread(ours.recv) == "done"

    async with polling(keyring):
        assert await asyncio.to_thread(ours.recv) == "up"
        assert await keyring.key(secret) is Refused.UNKNOWN
        await told("create", secret)
        async with asyncio.timeout(1):
            while not isinstance(keyring.authenticate(secret, time.time()), ApiKey):
                await asyncio.sleep(0.01)
        await told("revoke", secret)
        async with asyncio.timeout(1):
            while await keyring.key(secret) is not Refused.REVOKED:
                await asyncio.sleep(0.01)
    ours.send(None)
    await asyncio.to_thread(child.join, 20)
    assert child.exitcode == 0
    ours.close()
    theirs.close()
    engine.dispose()


async def test_no_file_of_the_ledger_holds_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    migrate(sqlite_url(file))
    secret = new_secret().reveal()
    _create(file, secret)
    engine = open_engine(sqlite_url(file))
    with reading(engine) as connection:
        (row,) = connection.exec_driver_sql("SELECT * FROM api_keys").all()
    engine.dispose()
    assert secret[3:] not in repr(row)
    for kept in tmp_path.iterdir():
        assert secret[3:20].encode() not in kept.read_bytes(), kept
