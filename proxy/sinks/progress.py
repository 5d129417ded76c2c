"""Delivery state of each sink: its cursor in the ledger, and the entries that its server rejected.

Invariants:
- A cursor moves past an entry in the transaction that records it as sent or as a dead letter.
- Only the process that holds the claim of a sink moves its cursor. After a crash, the last chunk is sent again.
- No entry can appear behind a cursor, because entries are read up to the ledger's time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, func, literal, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite

from proxy.billing.entries import ENTRY_FIELDS, LedgerEntry
from proxy.ledger.schema.column_types import UtcTime
from proxy.ledger.schema.tables import ledger_entries, sink_letters, sinks
from proxy.ledger.settling.spend import clock_of
from proxy.reports.entry_reader import EntryFilter, EntryReader
from proxy.storage.database import is_shared, reading, writing

OPEN, AGAIN, SENT = "open", "again", "sent"
"""states of a dead letter; AGAIN: to be sent once more"""

# Longer than sending a chunk takes. After a crash, the sink waits this long for another process.
CLAIM_S = 60.0
_WHY_CHARS_MAX = 200
_SINKS, _LETTERS, _ENTRIES = sinks.c, sink_letters.c, ledger_entries.c

Cursor = tuple[float, str]
"""settled_at (Unix seconds) and entry_id"""

Settled = tuple[LedgerEntry, float]
"""an entry and its settlement time (Unix seconds)"""


class SinkState(msgspec.Struct, frozen=True):
    """A row of the table `sinks`. Times: Unix seconds."""

    name: str
    settled_at: float
    entry_id: str
    sent: int
    last_sent_at: float | None
    claimed_by: str | None
    claimed_until: float
    failures: int
    failing_since: float | None
    next_at: float
    last_error: str | None

    @property
    def cursor(self) -> Cursor:
        """The last entry done; all later entries are pending."""
        return self.settled_at, self.entry_id


class SinkDeadLetter(msgspec.Struct, frozen=True):
    """A dead letter: an entry that the sink's server rejected. Times: Unix seconds."""

    sink: str
    entry_id: str
    settled_at: float
    why: str
    first_seen: float
    state: str


class SinkStatus(msgspec.Struct, frozen=True):
    """Delivery status of a sink."""

    sink: SinkState
    waiting: int
    """pending entries; WAITING_MAX means at least that many"""
    oldest: float | None
    """settlement time of the first pending entry; Unix seconds"""
    dead_letters: int
    """open dead letters"""

    def lag_s(self, now: float) -> float:
        """Age of the first pending entry in seconds; 0 without one."""
        return 0.0 if self.oldest is None else max(0.0, now - self.oldest)


def register(engine: Engine, name: str, since: float | None) -> None:
    """Creates the sink, if it is new, with its cursor at `since` (Unix seconds) or, if None, at the present.

    Raises LedgerUnavailable.
    """
    if _read(engine, name) is not None:
        return
    with writing(engine) as connection:
        at = clock_of(connection) / 1e6 if since is None else since
        row = {"name": name, "settled_at": at, "entry_id": "" if since is not None else "~"}
        fresh = {"sent": 0, "claimed_until": 0.0, "failures": 0, "next_at": 0.0}
        _insert_once(connection, sinks, [row | fresh])


def claim(engine: Engine, name: str, by: str, now: float) -> SinkState | None:
    """Claims the sink for CLAIM_S. None if nothing is due or another process holds the claim.

    Raises LedgerUnavailable.
    """
    sink = _read(engine, name)
    if sink is None or sink.next_at > now or (sink.claimed_until > now and sink.claimed_by != by):
        return None
    if not pending(engine, sink) and not to_resend(engine, name, 1):
        return None
    with writing(engine) as connection:
        free = (_SINKS.claimed_until <= now) | (_SINKS.claimed_by == by)
        mine = {"claimed_by": by, "claimed_until": now + CLAIM_S}
        query = update(sinks).where(_SINKS.name == name, free).values(mine).returning(sinks)
        row = connection.execute(query).one_or_none()
        return None if row is None else SinkState(*row)


def pending(engine: Engine, sink: SinkState) -> list[Settled]:
    """The first page of entries after the cursor. Raises LedgerUnavailable."""
    return EntryReader(engine, EntryFilter(), sink.cursor).page()


def to_resend(engine: Engine, name: str, limit: int) -> list[Settled]:
    """Dead letters that an operator marked for a retry. Raises LedgerUnavailable."""
    same = tuple_(_ENTRIES.settled_at, _ENTRIES.entry_id) == tuple_(_LETTERS.settled_at, _LETTERS.entry_id)
    query = select(*(_ENTRIES[name] for name in ENTRY_FIELDS), _ENTRIES.settled_at).join(sink_letters, same)
    query = query.where(_LETTERS.sink == name, _LETTERS.state == AGAIN).order_by(_LETTERS.entry_id).limit(limit)
    with reading(engine) as connection:
        rows = connection.execute(query).all()
    return [(LedgerEntry(**dict(zip(ENTRY_FIELDS, row, strict=False))), row.settled_at) for row in rows]


def advance(
    engine: Engine, sink: SinkState, done: Sequence[Settled], refused: Mapping[str, str], now: float
) -> bool:  # fmt: skip
    """Records `done` as sent, except `refused` (entry id → reason), which become dead letters.

    Returns False if another process holds the claim now. Raises LedgerUnavailable; the entries are then sent again.
    """
    last, settled_at = done[-1]
    values = {
        "sent": _SINKS.sent + len(done) - len(refused), "last_sent_at": now, "claimed_until": now + CLAIM_S,
        "failures": 0, "failing_since": None, "last_error": None, "next_at": 0.0,
    }  # fmt: skip
    if (settled_at, last.entry_id) > sink.cursor:
        values |= {"settled_at": settled_at, "entry_id": last.entry_id}
    with writing(engine) as connection:
        if not _still_mine(connection, sink, values):
            return False
        times = {entry.entry_id: at for entry, at in done}
        _settle_dead_letters(connection, sink.name, times, refused, now)
        return True


def record_failure(engine: Engine, sink: SinkState, why: str, wait_s: float, now: float) -> None:
    """Records a failed delivery; the next attempt is in `wait_s`. Raises LedgerUnavailable."""
    values = {
        "failures": _SINKS.failures + 1, "failing_since": func.coalesce(_SINKS.failing_since, literal(now, UtcTime)),
        "last_error": why[:_WHY_CHARS_MAX], "next_at": now + wait_s,
    }  # fmt: skip
    with writing(engine) as connection:
        _still_mine(connection, sink, values)


def release(engine: Engine, name: str, by: str) -> None:
    """Gives up the claim. Raises LedgerUnavailable."""
    with writing(engine) as connection:
        mine = (_SINKS.name == name) & (_SINKS.claimed_by == by)
        connection.execute(update(sinks).where(mine).values(claimed_until=0.0))


# The count stops here: counting millions of entries takes seconds.
WAITING_MAX = 100_000


def end_wait(engine: Engine, name: str) -> None:
    """Makes the next attempt of a failing sink due. Raises LedgerUnavailable."""
    with writing(engine) as connection:
        _end_wait(connection, name)


def sink_status(engine: Engine, name: str) -> SinkStatus | None:
    """The status of a sink; None if it has never run. Raises LedgerUnavailable."""
    sink = _read(engine, name)
    if sink is None:
        return None
    after = tuple_(_ENTRIES.settled_at, _ENTRIES.entry_id) > sink.cursor
    with reading(engine) as connection:
        first = select(_ENTRIES.settled_at).where(after).order_by(_ENTRIES.settled_at).limit(WAITING_MAX).subquery()
        waiting, oldest = connection.execute(select(func.count(), func.min(first.c.settled_at))).one()
        is_open = (_LETTERS.sink == name) & (_LETTERS.state == OPEN)
        rejected = connection.execute(select(func.count()).select_from(sink_letters).where(is_open)).scalar_one()
    return SinkStatus(sink, waiting, oldest, rejected)


def dead_letters(engine: Engine, name: str) -> list[SinkDeadLetter]:
    """All dead letters of a sink, in the order of settlement. Raises LedgerUnavailable."""
    query = select(sink_letters).where(_LETTERS.sink == name).order_by(_LETTERS.settled_at, _LETTERS.entry_id)
    with reading(engine) as connection:
        return [SinkDeadLetter(*row) for row in connection.execute(query)]


def retry(engine: Engine, name: str) -> int:
    """Marks all open dead letters for a retry, at once; returns their number. Raises LedgerUnavailable."""
    with writing(engine) as connection:
        _end_wait(connection, name)
        is_open = (_LETTERS.sink == name) & (_LETTERS.state == OPEN)
        return connection.execute(update(sink_letters).where(is_open).values(state=AGAIN)).rowcount


def _end_wait(connection: Connection, name: str) -> None:
    connection.execute(update(sinks).where(_SINKS.name == name).values(next_at=0.0))


def _read(engine: Engine, name: str) -> SinkState | None:
    with reading(engine) as connection:
        row = connection.execute(select(sinks).where(_SINKS.name == name)).one_or_none()
    return None if row is None else SinkState(*row)


def _still_mine(connection: Connection, sink: SinkState, values: Mapping[str, Any]) -> bool:
    mine = (_SINKS.name == sink.name) & (_SINKS.claimed_by == sink.claimed_by)
    return connection.execute(update(sinks).where(mine).values(dict(values))).rowcount == 1


def _settle_dead_letters(
    connection: Connection, name: str, times: Mapping[str, float], refused: Mapping[str, str], now: float
) -> None:
    accepted = [entry_id for entry_id in times if entry_id not in refused]
    mine = _LETTERS.sink == name
    connection.execute(update(sink_letters).where(mine, _LETTERS.entry_id.in_(accepted)).values(state=SENT))
    for entry_id, why in refused.items():
        row = {"sink": name, "entry_id": entry_id, "settled_at": times[entry_id], "first_seen": now}
        _insert_once(connection, sink_letters, [row | {"why": why[:_WHY_CHARS_MAX], "state": OPEN}])
        again_refused = update(sink_letters).where(mine, _LETTERS.entry_id == entry_id)
        connection.execute(again_refused.values(state=OPEN, why=why[:_WHY_CHARS_MAX]))


def _insert_once(connection: Connection, table: Any, rows: Iterable[Mapping[str, Any]]) -> None:
    make = postgresql.insert if is_shared(connection) else sqlite.insert
    connection.execute(make(table).on_conflict_do_nothing(), [dict(row) for row in rows])
