"""Sets of limit counters in the SQLite file (table `passages`). Reservations with equal sets share one row.

Invariants: The id of a set is a hash of its content, and therefore equal in every generation of the file. A set stays
as long as a reservation refers to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from proxy.billing.limits import LimitCounter
from proxy.budgets.sqlite.file import BudgetFile, Damaged
from proxy.budgets.verdicts import bounds_rate

_INSERT = "INSERT OR IGNORE INTO passages VALUES (?, ?)"
_DELETE_UNUSED = "DELETE FROM passages WHERE passage NOT IN (SELECT passage FROM holds)"

# Cached sets; about 1 KiB each.
CACHED_MAX = 4_096

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[LimitCounter, ...]).decode


class StoredLimits(NamedTuple):
    """A row of the table: id and encoded counters."""

    limits_id: int
    packed: bytes


class _LimitCounters(NamedTuple):
    all: tuple[LimitCounter, ...]
    rated: tuple[LimitCounter, ...]


@lru_cache(maxsize=CACHED_MAX)  # the exchanges of a key have the same set
def stored_limits_of(counters: tuple[LimitCounter, ...]) -> StoredLimits:
    """The row of this set of counters."""
    packed = _encode(counters)
    return StoredLimits(int.from_bytes(blake2b(packed, digest_size=8).digest(), signed=True), packed)


class ResolvedLimitsTable:
    """Access to the table, within transactions of `file`."""

    def __init__(self, file: BudgetFile) -> None:
        self._file = file
        self._cached: dict[int, _LimitCounters] = {}

    def counters(self, limits_id: int) -> tuple[LimitCounter, ...]:
        """All counters of a set. Raises Damaged."""
        return (self._cached.get(limits_id) or self._read(limits_id)).all

    def rated(self, limits_id: int) -> tuple[LimitCounter, ...]:
        """The counters of a set that bound rates. Raises Damaged."""
        return (self._cached.get(limits_id) or self._read(limits_id)).rated

    def insert(self, rows: Iterable[StoredLimits]) -> None:
        """Store these sets; existing rows stay."""
        self._file.executemany(_INSERT, rows)

    def delete_unused(self) -> None:
        """Delete the sets without a reservation."""
        self._file.execute(_DELETE_UNUSED)

    def _read(self, limits_id: int) -> _LimitCounters:
        row = self._file.execute("SELECT gates FROM passages WHERE passage = ?", (limits_id,)).fetchone()
        try:
            counters = _decode(row[0] if row else b"")
        except msgspec.DecodeError as error:
            raise Damaged(str(error)) from None
        if len(self._cached) >= CACHED_MAX:
            self._cached.clear()
        read = self._cached[limits_id] = _LimitCounters(counters, tuple(filter(bounds_rate, counters)))
        return read
