"""What happens within one settling transaction. Law: see store.py, whose promises are kept here.

Every record that arrives with a receipt leaves it behind, in an entry or in a dead letter: only then can its journal
forget it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import msgspec
from sqlalchemy import Connection, Dialect, bindparam, case, exc, literal_column, select

from proxy.billing.adjustment import ContradictionError, is_swept, restated
from proxy.billing.attempts import attempt_entries
from proxy.billing.entries import ENTRY_FIELDS, EntryKind, LedgerEntry
from proxy.ledger.schema.tables import dead_letters, ledger_clock, ledger_entries
from proxy.ledger.settling.sums import Sums
from proxy.storage.database import refused_row
from proxy.storage.prepared import prepared_insert

OPEN, RETRIED, DROPPED = "open", "retried", "dropped"
"""states of a dead letter: somebody should look at it; it was settled after all; somebody has decided against it"""

_ALL_FIELDS = attrgetter(*ENTRY_FIELDS)
_IDENTITY = attrgetter("exchange_id", "kind", "seq")
_STORED = select(ledger_entries).where(ledger_entries.c.exchange_id.in_(bindparam("exchange_ids", expanding=True)))
Identity = tuple[str, str, int]


class Arrival(msgspec.Struct, frozen=True):
    """An entry on its way in, and its receipt: which record of which journal it was made of. A sweeper has none."""

    entry: LedgerEntry
    node: str | None = None
    journal_seq: int | None = None


class Stored(msgspec.Struct, frozen=True):
    """An entry as the ledger has it."""

    entry: LedgerEntry
    content_hash: str
    node: str | None
    journal_seq: int | None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What could not become a ledger entry, kept for a person to look at."""

    reason: str
    payload: str
    """all of it, as JSON where it is"""
    exchange_id: str | None = None
    kind: str | None = None
    seq: int | None = None
    node: str | None = None
    journal_seq: int | None = None
    state: str = OPEN


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a batch: its numbers add up to the arrivals given. Lines of attempts are in none of them."""

    inserted: Sequence[LedgerEntry] = ()
    """are new in the ledger"""
    repeated: int = 0
    """were there before, with the same content (or swept, and better known by then): nothing happened"""
    conflicts: int = 0
    """were there before with another content: an alarm; kept as dead letters"""
    rejected: int = 0
    """could not be stored; kept as dead letters"""
    adjusted: Sequence[LedgerEntry] = ()
    """the differences that late records made to what had been swept; new in the ledger"""


@dataclass(frozen=True, slots=True)
class Batch:
    """Arrivals (not none) as the database takes them: made before the transaction, because whoever settles holds the
    lock that all others wait for."""

    arrivals: Sequence[Arrival]
    rows: Any
    sums: Any


class Statements:
    """Everything that is compiled once for a database."""

    def __init__(self, dialect: Dialect, content_hash: Callable[[LedgerEntry], str]) -> None:
        self.content_hash = content_hash
        self.entries = prepared_insert(
            ledger_entries,
            lambda insert: insert.on_conflict_do_nothing(),
            dialect,
            computed={"settled_at": select(ledger_clock.c.settled_at).scalar_subquery()},
        )
        self.letters = prepared_insert(dead_letters, _counting, dialect)
        self.sums = Sums(dialect)

    def batch(self, arrivals: Sequence[Arrival]) -> Batch:
        """Raises what a bad row raises."""
        rows = self.entries.bound([self._row(one) for one in arrivals])
        return Batch(arrivals, rows, self.sums.bound([one.entry for one in arrivals]))

    def _row(self, arrival: Arrival) -> tuple[Any, ...]:
        entry = arrival.entry
        return (*_ALL_FIELDS(entry), self.content_hash(entry), arrival.node, arrival.journal_seq)


@dataclass(slots=True)
class _Tally:
    """What has become of the arrivals so far."""

    inserted: list[LedgerEntry] = field(default_factory=list)
    repeated: int = 0
    conflicts: int = 0
    rejected: int = 0
    late: list[Arrival] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)


class Settling:
    """One transaction, in which nobody else settles."""

    def __init__(self, statements: Statements, connection: Connection, now: float) -> None:
        """`now`: the `settled_at` of all that is written, as `ledger_clock` has it."""
        self.connection = connection
        self.now = now
        self._statements = statements

    def settle_new(self, batch: Batch | None, letters: Sequence[DeadLetter]) -> Settled:
        """All at once. Raises OddBatchError if one was there before, and whatever a bad row raises."""
        if batch is not None:
            self._insert(batch)
        self.insert_dead_letters(letters)
        return Settled(
            inserted=tuple(one.entry for one in batch.arrivals if one.entry.kind != EntryKind.ATTEMPT) if batch else ()
        )

    def settle_any(self, arrivals: Sequence[Arrival], letters: Sequence[DeadLetter]) -> Settled:
        """Each as it deserves: inserted, repeated, an adjustment, or a dead letter."""
        stored = self.stored({arrival.entry.exchange_id for arrival in arrivals})
        tally, adjusting = _Tally(), _Tally()
        self._settle_among(stored, arrivals, tally)
        for arrival in tally.late:
            self._restate(stored, arrival, adjusting)
        aside = _Tally()
        self._settle_among(stored, attempts(one for one in arrivals if _IDENTITY(one.entry) in stored), aside)
        self.insert_dead_letters([*letters, *tally.letters, *adjusting.letters, *aside.letters])
        return Settled(
            inserted=tuple(tally.inserted),
            repeated=tally.repeated + adjusting.repeated,
            conflicts=tally.conflicts + adjusting.conflicts,
            rejected=tally.rejected + adjusting.rejected,
            adjusted=tuple(adjusting.inserted),
        )

    def insert(self, arrivals: Sequence[Arrival]) -> None:
        """Entries (not none) that are new, and their sums. Raises OddBatchError if one is not."""
        self._insert(self._statements.batch(arrivals))

    def insert_dead_letters(self, letters: Iterable[DeadLetter]) -> None:
        """Put letters down; one that was there before is counted."""
        rows: dict[str, tuple[Any, ...]] = {}
        for letter in letters:
            identity = letter_id(letter)
            times = rows[identity][8] + 1 if identity in rows else 1
            rows[identity] = (identity, *_letter_row(letter, self.now, times))
        if rows:
            insert = self._statements.letters
            insert.execute(self.connection, insert.bound(rows.values()))

    def stored(self, exchange_ids: Iterable[str]) -> dict[Identity, Stored]:
        """Every entry of these exchanges."""
        ids = [one for one in exchange_ids if isinstance(one, str)]
        found: dict[Identity, Stored] = {}
        for row in self.connection.execute(_STORED, {"exchange_ids": ids}):
            entry = LedgerEntry(*row[: len(ENTRY_FIELDS)])
            found[_IDENTITY(entry)] = Stored(entry, row.content_hash, row.node, row.journal_seq)
        return found

    def _settle_among(self, stored: dict[Identity, Stored], arrivals: Sequence[Arrival], tally: _Tally) -> None:
        """`stored` is all that the ledger has of these exchanges; what goes in is added to it."""
        new: dict[Identity, Arrival] = {}
        known: list[Arrival] = []
        for arrival in arrivals:
            identity = _IDENTITY(arrival.entry)
            if identity in stored or identity in new:
                known.append(arrival)
            else:
                new[identity] = arrival
        before = len(tally.inserted)
        self._insert_sound(list(new.values()), tally)
        for entry in tally.inserted[before:]:
            one = new[_IDENTITY(entry)]
            stored[_IDENTITY(entry)] = Stored(entry, self._statements.content_hash(entry), one.node, one.journal_seq)
        for arrival in known:
            self._compare(arrival, stored.get(_IDENTITY(arrival.entry)), tally)

    def _insert_sound(self, arrivals: Sequence[Arrival], tally: _Tally) -> None:
        """Insert those that can be stored. What is refused is halved until the bad row stands alone."""
        if not arrivals:
            return
        try:
            with self.connection.begin_nested():
                self.insert(arrivals)
        except Exception as error:
            if not refused_row(error):
                raise
            if len(arrivals) > 1:
                middle = len(arrivals) // 2
                self._insert_sound(arrivals[:middle], tally)
                self._insert_sound(arrivals[middle:], tally)
            else:
                tally.rejected += 1
                tally.letters.append(_letter(arrivals[0], f"rejected: {_class_name(error)}"))
        else:
            tally.inserted += (arrival.entry for arrival in arrivals)

    def _compare(self, arrival: Arrival, stored: Stored | None, tally: _Tally) -> None:
        """An arrival whose name is taken; `stored` is None if the one that took it in this batch was refused."""
        entry = arrival.entry
        if stored is None:
            tally.rejected += 1
            tally.letters.append(_letter(arrival, "rejected: so was another under this id"))
        elif stored.content_hash == self._hash(entry):
            tally.repeated += 1
            if arrival.node is not None and (stored.node, stored.journal_seq) != (arrival.node, arrival.journal_seq):
                self._receipt(arrival, tally)
        elif is_swept(entry) or is_swept(stored.entry):
            tally.late.append(arrival)
        else:
            self._conflict(arrival, tally)

    def _restate(self, stored: dict[Identity, Stored], arrival: Arrival, tally: _Tally) -> None:
        """An arrival that may say better what the ledger has of its exchange."""
        there = [one for one in stored.values() if one.entry.exchange_id == arrival.entry.exchange_id]
        try:
            change = restated([one.entry for one in there], arrival.entry, self._statements.content_hash)
        except ContradictionError:
            self._conflict(arrival, tally)
            return
        if change is not None:
            self._settle_among(stored, [msgspec.structs.replace(arrival, entry=change)], tally)
            return
        tally.repeated += 1
        receipts = {(one.node, one.journal_seq) for one in there}
        if arrival.node is not None and (arrival.node, arrival.journal_seq) not in receipts:
            self._receipt(arrival, tally)

    def _receipt(self, arrival: Arrival, tally: _Tally) -> None:
        """Nothing is wrong, but its journal would ask for ever."""
        tally.letters.append(replace(_letter(arrival, "repeated under another receipt"), state=DROPPED))

    def _conflict(self, arrival: Arrival, tally: _Tally) -> None:
        tally.conflicts += 1
        tally.letters.append(_letter(arrival, "conflict: the ledger has another content under this id"))

    def _hash(self, entry: LedgerEntry) -> str | None:
        """None for an entry that could not be stored anyway, and so is not the one that is."""
        try:
            return self._statements.content_hash(entry)
        except (TypeError, ValueError):
            return None

    def _insert(self, batch: Batch) -> None:
        if self._statements.entries.execute(self.connection, batch.rows) != len(batch.arrivals):
            raise DuplicateInBatchError
        self._statements.sums.add(self.connection, batch.sums)


def attempts(arrivals: Iterable[Arrival]) -> list[Arrival]:
    """The lines of the attempts that these name. Without a receipt: the exchange's own entry has that."""
    return [Arrival(line) for one in arrivals for line in attempt_entries(one.entry)]


class DuplicateInBatchError(Exception):
    """Not every row of a batch was new: undoes its transaction."""


def letter_id(letter: DeadLetter) -> str:
    """The same for the same letter; another receipt makes it another one."""
    receipt = "" if letter.node is None else f"\n{letter.node}\n{letter.journal_seq}"
    text = f"{letter.reason}\n{letter.payload}{receipt}"
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def _counting(insert: Any) -> Any:
    """A letter that comes again is counted, and open again if it had been retried."""
    new, old = insert.excluded, dead_letters.c
    again = old.state == literal_column(f"'{RETRIED}'")
    return insert.on_conflict_do_update(
        index_elements=["id"],
        set_={
            "last_seen": new.last_seen,
            "times_seen": old.times_seen + new.times_seen,
            "state": case((again, new.state), else_=old.state),
            "state_at": case((again, new.state_at), else_=old.state_at),
        },
    )


def _letter_row(letter: DeadLetter, now: float, times: int) -> tuple[Any, ...]:
    """A row of dead_letters after its id, in the table's order. Whatever a letter holds, it can be stored."""
    exchange = (_storable(letter.exchange_id), _storable(letter.kind), letter.seq)
    said = (_storable(letter.reason), _storable(letter.payload))
    return (*exchange, *said, now, now, times, letter.node, letter.journal_seq, letter.state, now)


def _storable(text: str | None) -> str | None:
    """Without what Postgres (NUL) and UTF-8 (half a surrogate pair) cannot hold."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def _letter(arrival: Arrival, reason: str) -> DeadLetter:
    """Whatever is wrong with an entry, its letter can be stored: ASCII JSON, and ids only if they are sound."""
    entry = arrival.entry
    payload = {name: getattr(entry, name) for name in ENTRY_FIELDS}
    return DeadLetter(
        reason=reason,
        payload=json.dumps(payload, default=repr),
        exchange_id=entry.exchange_id if isinstance(entry.exchange_id, str) else None,
        kind=entry.kind if isinstance(entry.kind, str) else None,
        seq=entry.seq if isinstance(entry.seq, int) and 0 <= entry.seq < 1 << 31 else None,
        node=arrival.node,
        journal_seq=arrival.journal_seq,
    )


def _class_name(error: Exception) -> str:
    """The class of an error, the driver's own where there is one. Not its words: they may quote the row."""
    return type(error.orig if isinstance(error, exc.DBAPIError) else error).__name__
