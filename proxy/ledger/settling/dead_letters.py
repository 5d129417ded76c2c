"""What a person does with dead letters. Law: none is ever deleted; what is retried is settled as it would have been at
first, and marked in the same transaction; what fails again changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, func, literal, select, update

from proxy.billing.correction import REASON_CHARS_MAX
from proxy.billing.entries import LedgerEntry
from proxy.ledger.schema.tables import dead_letters
from proxy.ledger.settling.settling import DROPPED, OPEN, RETRIED
from proxy.ledger.settling.store import Arrival, LedgerStore, Settled
from proxy.storage.database import reading, writing

# The beginning of an id that is enough, if no other begins so.
ID_CHARS_MIN = 8

_COLUMNS = dead_letters.c


class DeadLetterError(ValueError):
    """A letter that is not there, or that somebody has dealt with already; its words are for the operator."""


class StoredDeadLetter(msgspec.Struct, frozen=True):
    """A dead letter as the ledger has it. Times: Unix seconds."""

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
    """Reads and settles them. Every method raises LedgerUnavailable."""

    def __init__(self, engine: Engine, store: LedgerStore, *, to_entry: Callable[[bytes], LedgerEntry]) -> None:
        """`to_entry`: the JSON of a record → its entry; whatever it raises leaves the letter as it is."""
        self._engine = engine
        self._store = store
        self._to_entry = to_entry

    def open(self) -> list[StoredDeadLetter]:
        """Those that nobody has dealt with, oldest first."""
        query = select(dead_letters).where(_COLUMNS.state == OPEN).order_by(_COLUMNS.first_seen, _COLUMNS.id)
        with reading(self._engine) as connection:
            return [StoredDeadLetter(*row) for row in connection.execute(query)]

    def named(self, beginning: str) -> StoredDeadLetter:
        """The letter whose id begins so. Raises LetterError unless there is just one, and it is open."""
        if len(beginning) < ID_CHARS_MIN:
            raise DeadLetterError(f"an id, or its first {ID_CHARS_MIN} characters or more, is needed: {beginning!r}")
        query = select(dead_letters).where(_COLUMNS.id.startswith(beginning, autoescape=True)).limit(2)
        with reading(self._engine) as connection:
            found = [StoredDeadLetter(*row) for row in connection.execute(query)]
        if len(found) != 1:
            raise DeadLetterError(
                f"{'more than one' if found else 'no'} dead letter has an id that begins {beginning!r}"
            )
        if found[0].state != OPEN:
            raise DeadLetterError(f"the dead letter {found[0].id} is {found[0].state} already")
        return found[0]

    def retry(self, letter: StoredDeadLetter) -> str:
        """Settle it after all; what became of it: `inserted`, `adjusted` or `repeated`.

        Raises LetterError with the reason why it stays open: nothing has happened then.
        """
        arrival = Arrival(self._entry(letter), letter.node, letter.journal_seq)
        with self._store.settling() as settling:
            settled = settling.settle_any([arrival], [])
            if settled.conflicts or settled.rejected:
                raise DeadLetterError(_why(settled))
            _mark(settling.connection, letter, RETRIED, settling.now, "")
        return "inserted" if settled.inserted else "adjusted" if settled.adjusted else "repeated"

    def drop(self, letter: StoredDeadLetter, why: str, now: float) -> None:
        """Decide against it, for this reason, which is added to its own. Raises LetterError."""
        if not why.strip() or len(why) > REASON_CHARS_MAX or not why.isprintable():
            raise DeadLetterError(f"a reason has 1 to {REASON_CHARS_MAX} printable characters")
        with writing(self._engine) as connection:
            _mark(connection, letter, DROPPED, now, f"; dropped: {why.strip()}")

    def _entry(self, letter: StoredDeadLetter) -> LedgerEntry:
        """What is laid aside is a record that could not be read, or an entry that could not be stored."""
        try:
            shape = msgspec.json.decode(letter.payload)
            if isinstance(shape, dict) and "entry_id" in shape:
                return msgspec.convert(shape, LedgerEntry)
            return self._to_entry(letter.payload.encode())
        except Exception as error:
            raise DeadLetterError(f"still cannot be read: {type(error).__name__}: {error}") from error


def count_open(engine: Engine) -> int:
    """How many letters nobody has dealt with. Raises LedgerUnavailable."""
    with reading(engine) as connection:
        counted = connection.execute(select(func.count()).where(_COLUMNS.state == OPEN)).scalar_one()
    return int(counted)


def _why(settled: Settled) -> str:
    if settled.conflicts:
        return "the ledger has another content under this id: adjust that, and drop this"
    return "the database still refuses it"


def _mark(connection: Connection, letter: StoredDeadLetter, state: str, now: float, more: str) -> None:
    """Raises LetterError if somebody else was faster."""
    mine = (_COLUMNS.id == letter.id) & (_COLUMNS.state == OPEN)
    values: dict[str, Any] = {"state": state, "state_at": now}
    if more:
        values["reason"] = _COLUMNS.reason + literal(more)
    if connection.execute(update(dead_letters).where(mine).values(values)).rowcount != 1:
        raise DeadLetterError(f"the dead letter {letter.id} is not open any more")
