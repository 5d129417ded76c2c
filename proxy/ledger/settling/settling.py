"""The statements of one settling transaction.

Invariants: those of store.py; the receipt of every arrival is stored, in an entry or in a dead letter, because the
journal keeps the record until then.
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

from proxy.billing.adjustment import ContradictionError, Finality, finality, restated
from proxy.billing.attempts import attempt_entries
from proxy.billing.details import EntryDetails, detail_name
from proxy.billing.entries import ENTRY_FIELDS, STORED_NAMES, EntryKind, LedgerEntry
from proxy.ledger.schema.archive_guard import is_refused
from proxy.ledger.schema.tables import dead_letters, ledger_clock, ledger_entries
from proxy.ledger.settling.sums import Sums
from proxy.storage.database import refused_row
from proxy.storage.prepared import prepared_insert

OPEN, RETRIED, DROPPED = "open", "retried", "dropped"
"""states of a dead letter: an operator must decide; settled by a retry; closed unsettled"""

ARCHIVED = "rejected: its month is archived: only the archive can tell whether it was settled"
"""the reason of a dead letter"""

_ALL_FIELDS = attrgetter(*ENTRY_FIELDS)
_ATTEMPTS = detail_name(EntryDetails.attempts)
_IDENTITY = attrgetter("exchange_id", "kind", "seq")
_STORED = select(ledger_entries).where(ledger_entries.c.exchange_id.in_(bindparam("exchange_ids", expanding=True)))
Identity = tuple[str, str, int]


class Arrival(msgspec.Struct, frozen=True):
    """An entry to settle, and its receipt: node and number of its journal record. A sweeper's entries have no
    receipt."""

    entry: LedgerEntry
    node: str | None = None
    journal_seq: int | None = None
    record_hash: str | None = None
    """hash of the record's bytes, because another version may make another entry of them; None: the entry is hashed"""


class Stored(msgspec.Struct, frozen=True):
    """A stored entry."""

    entry: LedgerEntry
    content_hash: str
    node: str | None
    journal_seq: int | None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record or an entry that could not be settled, kept for an operator."""

    reason: str
    payload: str
    """the whole record or entry, as JSON where possible"""
    exchange_id: str | None = None
    kind: str | None = None
    seq: int | None = None
    node: str | None = None
    journal_seq: int | None = None
    state: str = OPEN


@dataclass(frozen=True, slots=True)
class Settled:
    """The result of a batch. The counts add up to the arrivals; entries of attempts are not counted."""

    inserted: Sequence[LedgerEntry] = ()
    """new entries"""
    repeated: int = 0
    """arrivals that the ledger already has, with the same content or, for swept exchanges, better data: ignored"""
    conflicts: int = 0
    """arrivals that differ from a stored entry with the same identity: kept as dead letters"""
    rejected: int = 0
    """arrivals that the database rejects: kept as dead letters"""
    adjusted: Sequence[LedgerEntry] = ()
    """new adjustments: differences between late records and swept exchanges"""


@dataclass(frozen=True, slots=True)
class Batch:
    """One or more arrivals with their bound parameters, computed before the transaction, which holds the settling
    lock."""

    arrivals: Sequence[Arrival]
    rows: Any
    sums: Any


class Statements:
    """The SQL of settling, compiled once per database."""

    def __init__(self, dialect: Dialect, content_hash: Callable[[LedgerEntry], str], clock_id: int) -> None:
        """`clock_id`: the row of `ledger_clock` that all transactions with these statements hold."""
        settled_at = select(ledger_clock.c.settled_at).where(ledger_clock.c.id == literal_column(str(clock_id)))
        self.content_hash = content_hash
        self.entries = prepared_insert(
            ledger_entries,
            lambda insert: insert.on_conflict_do_nothing(),
            dialect,
            computed={"settled_at": settled_at.scalar_subquery()},
        )
        self.letters = prepared_insert(dead_letters, _counting, dialect)
        self.sums = Sums(dialect)

    def batch(self, arrivals: Sequence[Arrival]) -> Batch:
        """Bind arrivals (one or more). Raises the error of an invalid row."""
        rows = self.entries.bound([self._row(arrival) for arrival in arrivals])
        return Batch(arrivals, rows, self.sums.bound([arrival.entry for arrival in arrivals]))

    def _row(self, arrival: Arrival) -> tuple[Any, ...]:
        entry = arrival.entry
        return (*_ALL_FIELDS(entry), self.hash_of(arrival), arrival.node, arrival.journal_seq)

    def hash_of(self, arrival: Arrival) -> str:
        """The hash that is stored with an entry."""
        return arrival.record_hash or self.content_hash(arrival.entry)


@dataclass(slots=True)
class _BatchResults:
    """The results of a batch so far."""

    inserted: list[LedgerEntry] = field(default_factory=list)
    repeated: int = 0
    conflicts: int = 0
    rejected: int = 0
    late: list[Arrival] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)


class Settling:
    """One settling transaction, which excludes all other transactions of its shard."""

    def __init__(self, statements: Statements, connection: Connection, now: float) -> None:
        """`now`: the `settled_at` of all rows written, equal to the time of the locked clocks."""
        self.connection = connection
        self.now = now
        self._statements = statements

    def settle_new(self, batch: Batch | None, letters: Sequence[DeadLetter]) -> Settled:
        """Insert a batch of new entries. Raises DuplicateInBatchError if an entry exists, or the error of an invalid
        row."""
        if batch is not None:
            self._insert(batch)
        self.insert_dead_letters(letters)
        return Settled(
            inserted=tuple(arrival.entry for arrival in batch.arrivals if arrival.entry.kind != EntryKind.ATTEMPT)
            if batch
            else ()
        )

    def settle_any(self, arrivals: Sequence[Arrival], letters: Sequence[DeadLetter]) -> Settled:
        """Settle each arrival separately: as a new entry, a repetition, an adjustment or a dead letter. The transaction
        must exclude those of all shards, because it compares with stored entries."""
        stored = self.stored({arrival.entry.exchange_id for arrival in arrivals})
        repeats = {identity for one in arrivals if _is_of(stored.get(identity := _IDENTITY(one.entry)), one)}
        tally, adjusting = _BatchResults(), _BatchResults()
        self._settle_among(stored, arrivals, tally)
        for arrival in tally.late:
            self._restate(stored, arrival, adjusting)
        attempting = _BatchResults()
        settled = stored.keys() - repeats
        self._settle_among(stored, attempts(one for one in arrivals if _IDENTITY(one.entry) in settled), attempting)
        self.insert_dead_letters([*letters, *tally.letters, *adjusting.letters, *attempting.letters])
        return Settled(
            inserted=tuple(tally.inserted),
            repeated=tally.repeated + adjusting.repeated,
            conflicts=tally.conflicts + adjusting.conflicts,
            rejected=tally.rejected + adjusting.rejected,
            adjusted=tuple(adjusting.inserted),
        )

    def insert(self, arrivals: Sequence[Arrival]) -> None:
        """Insert one or more new entries and add to the sums. Raises DuplicateInBatchError if an entry is not new."""
        self._insert(self._statements.batch(arrivals))

    def insert_dead_letters(self, letters: Iterable[DeadLetter]) -> None:
        """Insert dead letters; a repeated one is counted."""
        rows: dict[str, tuple[Any, ...]] = {}
        for letter in letters:
            identity = dead_letter_id(letter)
            times = rows[identity][8] + 1 if identity in rows else 1
            rows[identity] = (identity, *_dead_letter_row(letter, self.now, times))
        if rows:
            insert = self._statements.letters
            insert.execute(self.connection, insert.bound(rows.values()))

    def stored(self, exchange_ids: Iterable[str]) -> dict[Identity, Stored]:
        """All stored entries of these exchanges."""
        ids = [exchange_id for exchange_id in exchange_ids if isinstance(exchange_id, str)]
        stored: dict[Identity, Stored] = {}
        for row in self.connection.execute(_STORED, {"exchange_ids": ids}):
            entry = LedgerEntry(*row[: len(ENTRY_FIELDS)])
            stored[_IDENTITY(entry)] = Stored(entry, row.content_hash, row.node, row.journal_seq)
        return stored

    def _settle_among(self, stored: dict[Identity, Stored], arrivals: Sequence[Arrival], tally: _BatchResults) -> None:
        """Settle arrivals against `stored`, all stored entries of their exchanges. New entries are added to
        `stored`."""
        new: dict[Identity, Arrival] = {}
        known: list[Arrival] = []
        for arrival in arrivals:
            identity = _IDENTITY(arrival.entry)
            if identity in stored or identity in new:
                known.append(arrival)
            else:
                new[identity] = arrival
        before = len(tally.inserted)
        self._insert_valid(list(new.values()), tally)
        for entry in tally.inserted[before:]:
            one = new[_IDENTITY(entry)]
            stored[_IDENTITY(entry)] = Stored(entry, self._statements.hash_of(one), one.node, one.journal_seq)
        for arrival in known:
            self._compare(arrival, stored.get(_IDENTITY(arrival.entry)), tally)

    def _insert_valid(self, arrivals: Sequence[Arrival], tally: _BatchResults) -> None:
        """Insert the arrivals that the database accepts. A rejected batch is bisected to find the invalid rows."""
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
                self._insert_valid(arrivals[:middle], tally)
                self._insert_valid(arrivals[middle:], tally)
            else:
                tally.rejected += 1
                why = ARCHIVED if is_refused(error) else f"rejected: {_class_name(error)}"
                tally.letters.append(_dead_letter(arrivals[0], why))
        else:
            tally.inserted += (arrival.entry for arrival in arrivals)

    def _compare(self, arrival: Arrival, stored: Stored | None, tally: _BatchResults) -> None:
        """Settle an arrival whose identity exists. `stored` is None if the first such arrival of this batch was
        rejected."""
        entry = arrival.entry
        if stored is None:
            tally.rejected += 1
            tally.letters.append(_dead_letter(arrival, "rejected: so was another under this id"))
        elif _is_of(stored, arrival) or stored.content_hash == self._hash(entry):
            tally.repeated += 1
            if arrival.node is not None and (stored.node, stored.journal_seq) != (arrival.node, arrival.journal_seq):
                self._receipt(arrival, tally)
        elif min(finality(entry), finality(stored.entry)) < Finality.FINAL:
            tally.late.append(arrival)
        else:
            self._conflict(arrival, tally)

    def _restate(self, stored: dict[Identity, Stored], arrival: Arrival, tally: _BatchResults) -> None:
        """Settle an arrival that may have better data than the stored entries of its swept exchange."""
        known = [one for one in stored.values() if one.entry.exchange_id == arrival.entry.exchange_id]
        try:
            change = restated(
                [one.entry for one in known], arrival.entry, self._statements.content_hash, arrival.record_hash
            )
        except ContradictionError:
            self._conflict(arrival, tally)
            return
        if change is not None:
            self._settle_among(stored, [msgspec.structs.replace(arrival, entry=change)], tally)
            return
        tally.repeated += 1
        receipts = {(one.node, one.journal_seq) for one in known}
        if arrival.node is not None and (arrival.node, arrival.journal_seq) not in receipts:
            self._receipt(arrival, tally)

    def _receipt(self, arrival: Arrival, tally: _BatchResults) -> None:
        """Store only the receipt, so that the journal can delete the record."""
        tally.letters.append(replace(_dead_letter(arrival, "repeated under another receipt"), state=DROPPED))

    def _conflict(self, arrival: Arrival, tally: _BatchResults) -> None:
        tally.conflicts += 1
        tally.letters.append(_dead_letter(arrival, "conflict: the ledger has another content under this id"))

    def _hash(self, entry: LedgerEntry) -> str | None:
        """The content hash; None for a malformed entry, which cannot equal a stored one."""
        try:
            return self._statements.content_hash(entry)
        except (TypeError, ValueError):
            return None

    def _insert(self, batch: Batch) -> None:
        if self._statements.entries.execute(self.connection, batch.rows) != len(batch.arrivals):
            raise DuplicateInBatchError
        self._statements.sums.add(self.connection, batch.sums)


def _is_of(stored: Stored | None, arrival: Arrival) -> bool:
    """True if the stored entry was made from the arrival's record; its attempts are then stored too."""
    return stored is not None and stored.content_hash == arrival.record_hash


def attempts(arrivals: Iterable[Arrival]) -> list[Arrival]:
    """The entries of the failed attempts named in these arrivals. Only the exchange's own entry has the receipt."""
    with_attempts = [arrival.entry for arrival in arrivals if _ATTEMPTS in arrival.entry.details]
    return [Arrival(line) for entry in with_attempts for line in attempt_entries(entry)]


class DuplicateInBatchError(Exception):
    """A row of a batch exists already; raised to roll back the transaction."""


def dead_letter_id(letter: DeadLetter) -> str:
    """The id of a dead letter; equal for equal contents and receipts."""
    receipt = "" if letter.node is None else f"\n{letter.node}\n{letter.journal_seq}"
    text = f"{letter.reason}\n{letter.payload}{receipt}"
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def _counting(insert: Any) -> Any:
    """The insert, extended: a repeated dead letter is counted, and reopened if it was retried."""
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


def _dead_letter_row(letter: DeadLetter, now: float, times: int) -> tuple[Any, ...]:
    """A row of dead_letters after its id, in the table's order. Every text is made storable."""
    exchange = (_storable(letter.exchange_id), _storable(letter.kind), letter.seq)
    texts = (_storable(letter.reason), _storable(letter.payload))
    return (*exchange, *texts, now, now, times, letter.node, letter.journal_seq, letter.state, now)


def _storable(text: str | None) -> str | None:
    """Escape NUL, which Postgres rejects, and lone surrogates, which UTF-8 cannot encode."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def _dead_letter(arrival: Arrival, reason: str) -> DeadLetter:
    """A dead letter of an arrival. It can be stored even if the entry cannot: ASCII JSON, and ids only if valid."""
    entry = arrival.entry
    payload = {STORED_NAMES[name]: getattr(entry, name) for name in ENTRY_FIELDS}
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
    """The class of an error, or of the driver's error in it. The message is left out because it may quote the row."""
    return type(error.orig if isinstance(error, exc.DBAPIError) else error).__name__
