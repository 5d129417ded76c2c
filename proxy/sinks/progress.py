"""How far each sink is, and what its server refused. Law: a cursor moves past an entry when that is sent, or is a
letter; both in one transaction, by the one process that has claimed the sink. What was sent before a crash is
sent again.

`settled_at` rises from one settling transaction to the next, and so nothing can come in behind a cursor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, func, literal, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite

from proxy.billing.entries import ENTRY_FIELDS, LedgerEntry
from proxy.ledger.schema.tables import UtcTime, ledger_entries, sink_letters, sinks
from proxy.ledger.settling.spend import clock_of
from proxy.reports.entry_reader import EntryFilter, EntryReader
from proxy.storage.database import is_shared, reading, writing

OPEN, AGAIN, SENT = "open", "again", "sent"
"""states of a letter"""

# Longer than any chunk of entries takes; as long, a sink whose process was killed waits for another.
CLAIM_S = 60.0
_WHY_CHARS_MAX = 200
_SINKS, _LETTERS, _ENTRIES = sinks.c, sink_letters.c, ledger_entries.c

Cursor = tuple[float, str]
"""settled_at (Unix seconds) and entry_id"""

Settled = tuple[LedgerEntry, float]
"""an entry, and when it was settled"""


class Sink(msgspec.Struct, frozen=True):
    """As the ledger has it. Times: Unix seconds."""

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
        """What follows this is still to be sent."""
        return self.settled_at, self.entry_id


class SinkLetter(msgspec.Struct, frozen=True):
    """What a server refuses. Times: Unix seconds."""

    sink: str
    entry_id: str
    settled_at: float
    why: str
    first_seen: float
    state: str


class SinkStatus(msgspec.Struct, frozen=True):
    """How a sink stands."""

    sink: Sink
    waiting: int
    """entries that are still to be sent; WAITING_MAX: at least so many"""
    oldest: float | None
    """when the first of them was settled"""
    letters: int
    """open ones"""

    def lag_s(self, now: float) -> float:
        """How long the first of them has waited."""
        return 0.0 if self.oldest is None else max(0.0, now - self.oldest)


def begin(engine: Engine, name: str, since: float | None) -> None:
    """Make it known; again: nothing. What is settled from now on goes there, or from `since` on (Unix seconds).

    Raises LedgerUnavailable.
    """
    if _read(engine, name) is not None:
        return
    with writing(engine) as connection:
        at = clock_of(connection) / 1e6 if since is None else since
        row = {"name": name, "settled_at": at, "entry_id": "" if since is not None else "~"}
        fresh = {"sent": 0, "claimed_until": 0.0, "failures": 0, "next_at": 0.0}
        _insert_once(connection, sinks, [row | fresh])


def claim(engine: Engine, name: str, by: str, now: float) -> Sink | None:
    """The sink, for CLAIM_S nobody else's; None: there is nothing to do for it yet, or somebody does it.

    Raises LedgerUnavailable.
    """
    found = _read(engine, name)
    if found is None or found.next_at > now or (found.claimed_until > now and found.claimed_by != by):
        return None
    if not pending(engine, found) and not again(engine, name, 1):
        return None
    with writing(engine) as connection:
        free = (_SINKS.claimed_until <= now) | (_SINKS.claimed_by == by)
        mine = {"claimed_by": by, "claimed_until": now + CLAIM_S}
        query = update(sinks).where(_SINKS.name == name, free).values(mine).returning(sinks)
        row = connection.execute(query).one_or_none()
        return None if row is None else Sink(*row)


def pending(engine: Engine, sink: Sink) -> list[Settled]:
    """What follows its cursor, some hundreds of entries at most. Raises LedgerUnavailable."""
    return EntryReader(engine, EntryFilter(), sink.cursor).page()


def again(engine: Engine, name: str, limit: int) -> list[Settled]:
    """Entries that were letters, and are to be sent once more. Raises LedgerUnavailable."""
    same = tuple_(_ENTRIES.settled_at, _ENTRIES.entry_id) == tuple_(_LETTERS.settled_at, _LETTERS.entry_id)
    query = select(*(_ENTRIES[name] for name in ENTRY_FIELDS), _ENTRIES.settled_at).join(sink_letters, same)
    query = query.where(_LETTERS.sink == name, _LETTERS.state == AGAIN).order_by(_LETTERS.entry_id).limit(limit)
    with reading(engine) as connection:
        rows = connection.execute(query).all()
    return [(LedgerEntry(**dict(zip(ENTRY_FIELDS, row, strict=False))), row.settled_at) for row in rows]


def advance(
    engine: Engine, sink: Sink, done: Sequence[Settled], refused: Mapping[str, str], now: float
) -> bool:  # fmt: skip
    """These are sent, but for the `refused` (entry id → why). False: somebody else has the sink now.

    Raises LedgerUnavailable: then they are sent again.
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
        _settle_letters(connection, sink.name, times, refused, now)
        return True


def failed(engine: Engine, sink: Sink, why: str, wait_s: float, now: float) -> None:
    """Its server does not take anything now; it is tried again in `wait_s`. Raises LedgerUnavailable."""
    values = {
        "failures": _SINKS.failures + 1, "failing_since": func.coalesce(_SINKS.failing_since, literal(now, UtcTime)),
        "last_error": why[:_WHY_CHARS_MAX], "next_at": now + wait_s,
    }  # fmt: skip
    with writing(engine) as connection:
        _still_mine(connection, sink, values)


def release(engine: Engine, name: str, by: str) -> None:
    """Somebody else may have it at once. Raises LedgerUnavailable."""
    with writing(engine) as connection:
        mine = (_SINKS.name == name) & (_SINKS.claimed_by == by)
        connection.execute(update(sinks).where(mine).values(claimed_until=0.0))


# More are counted as so many: a count costs time.
WAITING_MAX = 100_000


def sink_status(engine: Engine, name: str) -> SinkStatus | None:
    """None: it has never run. Raises LedgerUnavailable."""
    sink = _read(engine, name)
    if sink is None:
        return None
    waits = tuple_(_ENTRIES.settled_at, _ENTRIES.entry_id) > sink.cursor
    with reading(engine) as connection:
        some = select(_ENTRIES.settled_at).where(waits).order_by(_ENTRIES.settled_at).limit(WAITING_MAX).subquery()
        waiting, oldest = connection.execute(select(func.count(), func.min(some.c.settled_at))).one()
        is_open = (_LETTERS.sink == name) & (_LETTERS.state == OPEN)
        letters = connection.execute(select(func.count()).select_from(sink_letters).where(is_open)).scalar_one()
    return SinkStatus(sink, waiting, oldest, letters)


def letters(engine: Engine, name: str) -> list[SinkLetter]:
    """All of a sink, in the order of their entries' settling. Raises LedgerUnavailable."""
    query = select(sink_letters).where(_LETTERS.sink == name).order_by(_LETTERS.settled_at, _LETTERS.entry_id)
    with reading(engine) as connection:
        return [SinkLetter(*row) for row in connection.execute(query)]


def retry(engine: Engine, name: str) -> int:
    """Send its open letters once more, and everything without waiting; how many letters. Raises LedgerUnavailable."""
    with writing(engine) as connection:
        connection.execute(update(sinks).where(_SINKS.name == name).values(next_at=0.0))
        is_open = (_LETTERS.sink == name) & (_LETTERS.state == OPEN)
        return connection.execute(update(sink_letters).where(is_open).values(state=AGAIN)).rowcount


def _read(engine: Engine, name: str) -> Sink | None:
    with reading(engine) as connection:
        row = connection.execute(select(sinks).where(_SINKS.name == name)).one_or_none()
    return None if row is None else Sink(*row)


def _still_mine(connection: Connection, sink: Sink, values: Mapping[str, Any]) -> bool:
    mine = (_SINKS.name == sink.name) & (_SINKS.claimed_by == sink.claimed_by)
    return connection.execute(update(sinks).where(mine).values(dict(values))).rowcount == 1


def _settle_letters(
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
