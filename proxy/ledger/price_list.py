"""The price list that all proxies of a ledger apply, and when it is checked next.

Invariants: there is one list. Of several processes, one makes each check: the others find that none is due. A list
replaces the one that it was compared with, and no other.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, select, update
from sqlalchemy.dialects import postgresql, sqlite

from proxy.ledger.schema.tables import price_lists
from proxy.storage.database import LedgerUnavailable, is_shared, reading, writing

# After a failed check, and after one whose process was killed.
RETRY_S = 600.0
_ERROR_CHARS_MAX = 500
_ROW = price_lists.c
_NAME = "current"
_STATE = (_ROW.version, _ROW.accepted_at, _ROW.checked_at, _ROW.next_at, _ROW.refused, _ROW.error)


class PriceListState(msgspec.Struct, frozen=True):
    """The list and its last check. Times: Unix seconds."""

    version: str | None = None
    """None: none was accepted yet"""
    accepted_at: float | None = None
    checked_at: float | None = None
    """the last successful check"""
    next_at: float = 0.0
    refused: Sequence[str] = ()
    """the refused changes of the last successful check, one line for each model"""
    error: str | None = None
    """why the last check failed; None: it did not"""


def read_state(engine: Engine) -> PriceListState:
    """Raises LedgerUnavailable."""
    with reading(engine) as connection:
        row = connection.execute(select(*_STATE)).one_or_none()
    return PriceListState() if row is None else PriceListState(*row)


def read_content(engine: Engine, version: str) -> bytes | None:
    """The list of this version; None: it is the installed package's. Raises LedgerUnavailable, also if another list has
    replaced it."""
    with reading(engine) as connection:
        row = connection.execute(select(_ROW.content).where(_ROW.version == version)).one_or_none()
    if row is None:
        raise LedgerUnavailable("the price list was replaced while it was read")
    return None if row.content is None else zlib.decompress(row.content)


def claim(engine: Engine, now: float, every_s: float) -> bool:
    """Claim a check, if one is due. Returns True in one process only: for RETRY_S, no other process gets it. Raises
    LedgerUnavailable."""
    with _changing(engine) as connection:
        # A time that is too far away is that of a longer interval, before it was changed.
        due = (_ROW.next_at <= now) | (_ROW.next_at > now + every_s)
        return connection.execute(update(price_lists).where(due).values(next_at=now + RETRY_S)).rowcount == 1


def record_failure(engine: Engine, error: str) -> None:
    """Record that a fetched list was refused, or that fetching failed. Raises LedgerUnavailable."""
    with _changing(engine) as connection:
        connection.execute(update(price_lists).values(error=error[:_ERROR_CHARS_MAX]))


def record_check(engine: Engine, now: float, every_s: float, refused: Sequence[str]) -> None:
    """A check has succeeded. Raises LedgerUnavailable."""
    values = {"checked_at": now, "next_at": now + every_s, "refused": list(refused), "error": None}
    with _changing(engine) as connection:
        connection.execute(update(price_lists).values(values))


def replace_list(engine: Engine, before: str | None, version: str, content: bytes | None, now: float) -> bool:
    """Make this list apply. `before`: the version that it was compared with. `content`: None: the installed package's.
    False: another list applies by now. Raises LedgerUnavailable."""
    compressed = None if content is None else zlib.compress(content)
    same = _ROW.version.is_(None) if before is None else _ROW.version == before
    changed = {"version": version, "content": compressed, "accepted_at": now}
    values: dict[str, Any] = {**changed, "refused": [], "error": None}
    with _changing(engine) as connection:
        return connection.execute(update(price_lists).where(same).values(values)).rowcount == 1


@contextmanager
def _changing(engine: Engine) -> Iterator[Connection]:
    """A transaction in which the row exists."""
    with writing(engine) as connection:
        make = postgresql.insert if is_shared(connection) else sqlite.insert
        connection.execute(make(price_lists).values(name=_NAME, next_at=0.0, refused=[]).on_conflict_do_nothing())
        yield connection
