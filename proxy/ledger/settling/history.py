"""Tells whether the ledger has lost commits: a standby that was behind was promoted, or a backup was restored.

Invariant: `went_back` is the only judgement. A promotion begins a new timeline of Postgres, whatever the clocks say; a
restored file or dump has an earlier ledger clock until something is settled in it.
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
    """How far a ledger was, and in which history of its server."""

    timeline: str
    """empty: the server has none, or does not tell"""
    clock_us: int


def went_back(before: LedgerState, now: LedgerState) -> bool:
    """True if commits that existed at `before` may be missing `now`."""
    return before.timeline != now.timeline or now.clock_us < before.clock_us


def ledger_state(engine: Engine) -> LedgerState:
    """The present state. Raises LedgerUnavailable."""
    before = timeline(engine)
    with reading(engine) as connection:
        clock_us = clock_of(connection)
    # Of the server that told the clock, unless a promotion came in between: then the next call tells the later one.
    return LedgerState(before, clock_us)


def timeline(engine: Engine) -> str:
    """The history that the server continues. Raises LedgerUnavailable."""
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
