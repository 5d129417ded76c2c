"""The one transaction that settles. Law: {entries, balances, dead letters} commit together or not at all; a
balance moves only for a row that was really inserted; a row that differs from its namesake is an alarm, never
an overwrite.

A batch goes in whole; if it turns out that one of its rows was here before, or cannot be stored, nothing of
that has happened, and it goes in again row by row: only odd batches pay for being odd.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, Dialect, Engine, Insert, bindparam, exc, func, literal_column, select

from proxy.billing.entries import ENTRY_FIELDS, LedgerEntry
from proxy.ledger.database import writing
from proxy.ledger.prepared import PreparedInsert, PreparedScalar, insert_into
from proxy.ledger.tables import balances, dead_letters, ledger_entries

# Timestamps in SQL are exact to this.
_MICROSECOND = 1e-6

# What a row can do wrong by itself. A database that is out of reach raises OperationalError and the like, which
# is no row's fault. (ValueError: text that is not Unicode; OverflowError: more than 64 bits.)
_BAD_ROW = (exc.IntegrityError, exc.DataError, exc.ProgrammingError, TypeError, ValueError, OverflowError)

_ALL_FIELDS = attrgetter(*ENTRY_FIELDS)
_COUNTED_FIELDS = attrgetter(
    "charge_usd",
    "cost_usd",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "total_tokens",
)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What could not become a ledger entry, kept for a person to look at."""

    reason: str
    payload: str
    """all of it, as JSON where it is"""
    exchange_id: str | None = None
    kind: str | None = None
    seq: int | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a batch: inserted, repeated, conflicts and rejected add up to the entries given."""

    inserted: Sequence[LedgerEntry] = ()
    """are new in the ledger"""
    repeated: int = 0
    """were there before, with the same content: nothing happened"""
    conflicts: int = 0
    """were there before with another content: an alarm; kept as dead letters"""
    rejected: int = 0
    """could not be stored; kept as dead letters"""


class LedgerStore:
    """Writes the ledger. Safe to use from several threads and several processes at once."""

    def __init__(
        self, engine: Engine, *, content_hash: Callable[[LedgerEntry], str], clock: Callable[[], float]
    ) -> None:
        """`content_hash`: equal for equal entries and for no others. `clock`: Unix seconds."""
        dialect = engine.dialect
        self._engine = engine
        self._content_hash = content_hash
        self._clock = clock
        self._last_settled_at = PreparedScalar(select(func.max(ledger_entries.c.settled_at)), dialect)
        new_entries = insert_into(ledger_entries, dialect).on_conflict_do_nothing()
        self._entries = PreparedInsert(new_entries, ledger_entries, dialect)
        self._balances = PreparedInsert(_balances_upsert(dialect), balances, dialect)
        self._letters = PreparedInsert(_letters_upsert(dialect), dead_letters, dialect)

    def settle(self, entries: Sequence[LedgerEntry], letters: Sequence[DeadLetter] = ()) -> Settled:
        """Put `entries` and `letters` down durably, in one transaction. Idempotent.

        Raises LedgerUnavailable: nothing, or (only the answer was lost) everything was done; do it again.
        """
        try:
            return self._settle_whole(entries, letters)
        except (_OddBatchError, *_BAD_ROW):
            return self._settle_each(entries, letters)

    def _settle_whole(self, entries: Sequence[LedgerEntry], letters: Sequence[DeadLetter]) -> Settled:
        with writing(self._engine) as connection:
            now = self._settled_at(connection)
            if entries:
                rows = [self._row(entry, now) for entry in entries]
                if self._entries.execute(connection, rows) != len(rows):
                    raise _OddBatchError
                self._balances.execute(connection, _deltas(entries))
            self._bury(connection, letters, now)
        return Settled(inserted=tuple(entries))

    def _settle_each(self, entries: Sequence[LedgerEntry], letters: Sequence[DeadLetter]) -> Settled:
        inserted: list[LedgerEntry] = []
        known: list[LedgerEntry] = []
        rejected: list[DeadLetter] = []
        with writing(self._engine) as connection:
            now = self._settled_at(connection)
            for entry in entries:
                try:
                    (inserted if self._insert(connection, entry, now) else known).append(entry)
                except _BAD_ROW as error:
                    rejected.append(_letter(entry, f"rejected: {_class_name(error)}"))
            if inserted:
                self._balances.execute(connection, _deltas(inserted))
            conflicts = self._conflicts(connection, known)
            self._bury(connection, [*letters, *rejected, *conflicts], now)
        return Settled(tuple(inserted), len(known) - len(conflicts), len(conflicts), len(rejected))

    def _settled_at(self, connection: Connection) -> float:
        """Now, but later than every earlier transaction's, whatever the clock does."""
        last = self._last_settled_at.execute(connection)
        now = self._clock()
        return now if last is None else max(now, last + _MICROSECOND)

    def _row(self, entry: LedgerEntry, settled_at: float) -> tuple[Any, ...]:
        return (*_ALL_FIELDS(entry), self._content_hash(entry), settled_at)

    def _insert(self, connection: Connection, entry: LedgerEntry, settled_at: float) -> bool:
        """True if the row went in, False if its name is taken. A bad row raises and leaves nothing behind."""
        with connection.begin_nested():
            _deltas([entry])  # a row that cannot be added up is a bad row
            return self._entries.execute(connection, [self._row(entry, settled_at)]) == 1

    def _conflicts(self, connection: Connection, known: Sequence[LedgerEntry]) -> list[DeadLetter]:
        """Letters for those of `known` whose row in the ledger has another content, or another id."""
        ids = [entry.entry_id for entry in known]
        hashes = {row.entry_id: row.content_hash for row in connection.execute(_HASHES, {"ids": ids})}
        return [
            _letter(entry, "conflict: the ledger has another content under this id")
            for entry in known
            if hashes.get(entry.entry_id) != self._content_hash(entry)
        ]

    def _bury(self, connection: Connection, letters: Sequence[DeadLetter], now: float) -> None:
        if letters:
            self._letters.execute(connection, [_letter_row(letter, now) for letter in letters])


class _OddBatchError(Exception):
    """Not every row of a batch was new: undoes its transaction."""


_HASHES = select(ledger_entries.c.entry_id, ledger_entries.c.content_hash).where(
    ledger_entries.c.entry_id.in_(bindparam("ids", expanding=True))
)


def _deltas(entries: Iterable[LedgerEntry]) -> list[tuple[Any, ...]]:
    """What these entries add to the balances, as rows of that table; what nobody knows adds nothing.

    In the order of the keys, so that two settlers on one database cannot deadlock.
    """
    sums: dict[str, list[int]] = {}
    for entry in entries:
        total = sums.setdefault(entry.key_id, [0] * 8)
        for index, value in enumerate(_COUNTED_FIELDS(entry)):
            if value is not None:
                total[index] += value
        total[7] += 1
    return [(key_id, *total) for key_id, total in sorted(sums.items())]


def _balances_upsert(dialect: Dialect) -> Insert:
    insert = insert_into(balances, dialect)
    sums = {c.name: c + insert.excluded[c.name] for c in balances.columns if not c.primary_key}
    # Rounded to the nano-USD at every step, so that SQLite's float is always the one nearest to the true sum.
    for name in ("charged_usd", "cost_usd"):
        sums[name] = func.round(sums[name], literal_column("9"), type_=balances.c[name].type)
    upsert: Insert = insert.on_conflict_do_update(index_elements=["key_id"], set_=sums)
    return upsert


def _letters_upsert(dialect: Dialect) -> Insert:
    insert = insert_into(dead_letters, dialect)
    again = {
        "last_seen": insert.excluded.last_seen,
        "times_seen": dead_letters.c.times_seen + insert.excluded.times_seen,
    }
    upsert: Insert = insert.on_conflict_do_update(index_elements=["id"], set_=again)
    return upsert


def _letter_row(letter: DeadLetter, now: float) -> tuple[Any, ...]:
    """A row of dead_letters, in the table's order."""
    identity = hashlib.sha256(f"{letter.reason}\n{letter.payload}".encode()).hexdigest()
    ids = (letter.exchange_id, letter.kind, letter.seq)
    return (identity, *ids, letter.reason, letter.payload, now, now, 1)


def _letter(entry: LedgerEntry, reason: str) -> DeadLetter:
    """Whatever is wrong with an entry, its letter can be stored: ASCII JSON, and ids only if they are sound."""
    payload = {name: getattr(entry, name) for name in ENTRY_FIELDS}
    return DeadLetter(
        reason=reason,
        payload=json.dumps(payload, default=repr),
        exchange_id=_sound_text(entry.exchange_id),
        kind=_sound_text(entry.kind),
        seq=entry.seq if isinstance(entry.seq, int) and 0 <= entry.seq < 1 << 31 else None,
    )


def _sound_text(value: object) -> str | None:
    return value.encode("ascii", "backslashreplace").decode() if isinstance(value, str) else None


def _class_name(error: Exception) -> str:
    """The class of an error, the driver's own where there is one. Not its words: they may quote the row."""
    return type(error.orig if isinstance(error, exc.DBAPIError) else error).__name__
