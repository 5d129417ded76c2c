"""Passages in the file of holds and sums: the gates that a hold is held at, kept once for all holds that have the same.

Law: a passage is named after what it says, so it is the same in every life of the file, whoever made it; it is kept as
long as a hold names it.
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

_NEW = "INSERT OR IGNORE INTO passages VALUES (?, ?)"
_FORGET = "DELETE FROM passages WHERE passage NOT IN (SELECT passage FROM holds)"

# Those that are at hand; about 1 KiB each.
PASSAGES_MAX = 4_096

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[LimitCounter, ...]).decode


class StoredLimits(NamedTuple):
    """A row of the file."""

    name: int
    packed: bytes


class _LimitCounters(NamedTuple):
    all: tuple[LimitCounter, ...]
    rated: tuple[LimitCounter, ...]


@lru_cache(maxsize=PASSAGES_MAX)  # those of a key are alike, from one exchange to the next
def stored_limits_of(gates: tuple[LimitCounter, ...]) -> StoredLimits:
    """Of these gates."""
    packed = _encode(gates)
    return StoredLimits(int.from_bytes(blake2b(packed, digest_size=8).digest(), signed=True), packed)


class ResolvedLimitsTable:
    """Within transactions of `file`."""

    def __init__(self, file: BudgetFile) -> None:
        self._file = file
        self._known: dict[int, _LimitCounters] = {}

    def gates(self, name: int) -> tuple[LimitCounter, ...]:
        """All of them. Raises Damaged."""
        return (self._known.get(name) or self._read(name)).all

    def rated(self, name: int) -> tuple[LimitCounter, ...]:
        """Those that bound rates. Raises Damaged."""
        return (self._known.get(name) or self._read(name)).rated

    def keep(self, passages: Iterable[StoredLimits]) -> None:
        """So that holds can name them."""
        self._file.executemany(_NEW, passages)

    def forget(self) -> None:
        """Those that no hold names any more."""
        self._file.execute(_FORGET)

    def _read(self, name: int) -> _LimitCounters:
        row = self._file.execute("SELECT gates FROM passages WHERE passage = ?", (name,)).fetchone()
        try:
            gates = _decode(row[0] if row else b"")
        except msgspec.DecodeError as error:
            raise Damaged(str(error)) from None
        if len(self._known) >= PASSAGES_MAX:
            self._known.clear()
        found = self._known[name] = _LimitCounters(gates, tuple([gate for gate in gates if bounds_rate(gate)]))
        return found
