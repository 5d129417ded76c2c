"""The operator's handling of dead letters: list, retry, drop.

Invariants: an open dead letter is never deleted; a retry settles it like a new arrival and marks it in the same
transaction; a retry that fails changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, func, literal, select, update

from proxy.billing.correction import REASON_CHARS_MAX
from proxy.billing.entries import LedgerEntry
from proxy.billing.settlement import record_hash
from proxy.foundation.names import UnknownNameError
from proxy.ledger.schema.tables import dead_letters
from proxy.ledger.settling.settling import DROPPED, OPEN, RETRIED
from proxy.ledger.settling.store import Arrival, LedgerStore, Settled
from proxy.storage.database import reading, writing

# The shortest prefix that identifies a dead letter, if it is unique.
ID_CHARS_MIN = 8

_COLUMNS = dead_letters.c


class DeadLetterError(ValueError):
    """A dead letter that does not exist, is not open or fails again; the message is for the operator."""


class StoredDeadLetter(msgspec.Struct, frozen=True):
    """A stored dead letter. Times: Unix seconds."""

    id: str
    exchange_id: str | None
    kind: str | None
    seq: int | None
    reason: str
    payload: str
    first_seen: float
    last_seen: float
    times_seen: int
    node: str | None
    journal_seq: int | None
    state: str
    state_at: float


class DeadLetters:
    """Reads and settles dead letters. Every method raises LedgerUnavailable."""

    def __init__(self, engine: Engine, store: LedgerStore, *, to_entry: Callable[[bytes], LedgerEntry]) -> None:
        """`to_entry`: the JSON of a record → its entry; may raise any exception if the record cannot be read."""
        self._engine = engine
        self._store = store
        self._to_entry = to_entry

    def open(self) -> list[StoredDeadLetter]:
        """The open dead letters, oldest first."""
        return read_open(self._engine)

    def named(self, prefix: str) -> StoredDeadLetter:
        """The open dead letter whose id begins with `prefix`. Raises UnknownNameError if none matches,
        DeadLetterError if several do or it is closed."""
        if len(prefix) < ID_CHARS_MIN:
            raise DeadLetterError(f"id: give at least the first {ID_CHARS_MIN} characters, not {prefix!r}")
        query = select(dead_letters).where(_COLUMNS.id.startswith(prefix, autoescape=True)).limit(2)
        with reading(self._engine) as connection:
            matches = [StoredDeadLetter(*row) for row in connection.execute(query)]
        if not matches:
            raise UnknownNameError(f"no dead letter has the id {prefix!r}…")
        if len(matches) > 1:
            raise DeadLetterError(f"several dead letters have the id {prefix!r}…")
        if matches[0].state != OPEN:
            raise DeadLetterError(f"the dead letter {matches[0].id} is already {matches[0].state}")
        return matches[0]

    def retry(self, dead_letter: StoredDeadLetter) -> str:
        """Settle the dead letter again; returns `inserted`, `adjusted` or `repeated`.

        Raises DeadLetterError with the reason if the dead letter stays open; nothing has changed then.
        """
        entry, record = self.entry(dead_letter), dead_letter.payload.encode()
        written = None if _is_entry(msgspec.json.decode(record)) else record_hash(record)
        arrival = Arrival(entry, dead_letter.node, dead_letter.journal_seq, written)
        with self._store.settling() as settling:
            settled = settling.settle_any([arrival], [])
            if settled.conflicts or settled.rejected:
                raise DeadLetterError(_why(settled))
            _mark(settling.connection, dead_letter, RETRIED, settling.now, "")
        return "inserted" if settled.inserted else "adjusted" if settled.adjusted else "repeated"

    def drop(self, dead_letter: StoredDeadLetter, why: str, now: float) -> None:
        """Close the dead letter unsettled; `why` is appended to its reason. Raises DeadLetterError."""
        if not why.strip() or len(why) > REASON_CHARS_MAX or not why.isprintable():
            raise DeadLetterError(f"reason: must be 1 to {REASON_CHARS_MAX} printable characters")
        with writing(self._engine) as connection:
            _mark(connection, dead_letter, DROPPED, now, f"; dropped: {why.strip()}")

    def entry(self, dead_letter: StoredDeadLetter) -> LedgerEntry:
        """The entry made from the dead letter's payload, which is a record or an entry. Raises DeadLetterError."""
        try:
            if _is_entry(payload := msgspec.json.decode(dead_letter.payload)):
                return msgspec.convert(payload, LedgerEntry)
            return self._to_entry(dead_letter.payload.encode())
        except Exception as error:
            raise DeadLetterError(f"the payload still cannot be read: {type(error).__name__}: {error}") from error


def read_open(engine: Engine, limit: int | None = None) -> list[StoredDeadLetter]:
    """The open dead letters, oldest first; at most `limit`. Raises LedgerUnavailable."""
    query = select(dead_letters).where(_COLUMNS.state == OPEN).order_by(_COLUMNS.first_seen, _COLUMNS.id)
    with reading(engine) as connection:
        return [StoredDeadLetter(*row) for row in connection.execute(query.limit(limit))]


def count_open(engine: Engine) -> int:
    """The number of open dead letters. Raises LedgerUnavailable."""
    with reading(engine) as connection:
        counted = connection.execute(select(func.count()).where(_COLUMNS.state == OPEN)).scalar_one()
    return int(counted)


def _is_entry(payload: object) -> bool:
    """True for an entry; False for a record."""
    return isinstance(payload, dict) and "entry_id" in payload


def _why(settled: Settled) -> str:
    if settled.conflicts:
        return "the ledger has another content under this id: adjust that exchange, and drop this dead letter"
    return "the database still rejects it"


def _mark(connection: Connection, dead_letter: StoredDeadLetter, state: str, now: float, suffix: str) -> None:
    """Set the state of an open dead letter. Raises DeadLetterError if another operator was faster."""
    still_open = (_COLUMNS.id == dead_letter.id) & (_COLUMNS.state == OPEN)
    values: dict[str, Any] = {"state": state, "state_at": now}
    if suffix:
        values["reason"] = _COLUMNS.reason + literal(suffix)
    if connection.execute(update(dead_letters).where(still_open).values(values)).rowcount != 1:
        raise DeadLetterError(f"the dead letter {dead_letter.id} is no longer open")
