"""Detects that the ledger lost commits: a standby that lagged was promoted, or a backup was restored.

Invariant: only `went_back` decides. A promotion begins a new timeline of Postgres, whatever the clocks show; a restored
file or dump has an earlier ledger clock until an entry is settled in it.
"""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, Engine

from proxy.ledger.settling.spend import clock_of
from proxy.storage.database import LedgerUnavailable, is_shared, reading, refused_statement

_TIMELINE_OF_POSTGRES = (
    "SELECT concat_ws('/', substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), oid)"
    " FROM pg_database WHERE datname = current_database()"
)


class LedgerState(msgspec.Struct, frozen=True):
    """The position of a ledger: its clock, and its server's timeline."""

    timeline: str
    """empty: the server has no timeline, or does not report it"""
    clock_us: int


def went_back(before: LedgerState, now: LedgerState) -> bool:
    """True if commits that existed at `before` may be missing `now`."""
    return before.timeline != now.timeline or now.clock_us < before.clock_us


def ledger_state(engine: Engine) -> LedgerState:
    """The current state. Raises LedgerUnavailable."""
    before = timeline(engine)
    with reading(engine) as connection:
        clock_us = clock_of(connection)
    # The timeline of the server that reported the clock. After a promotion in between, the next call reports the later.
    return LedgerState(before, clock_us)


def timeline(engine: Engine) -> str:
    """The server's timeline; empty if unknown. Raises LedgerUnavailable."""
    try:
        with reading(engine) as connection:
            return _timeline(connection)
    except LedgerUnavailable as error:
        if refused_statement(error):
            return ""
        raise


def _timeline(connection: Connection) -> str:
    if not is_shared(connection):
        return ""
    return str(connection.exec_driver_sql(_TIMELINE_OF_POSTGRES).scalar_one())
