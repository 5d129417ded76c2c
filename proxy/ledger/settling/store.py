"""The one transaction that settles. Law: {entries, balances, usage by day, dead letters} commit together or not at
all; a sum moves only for a row that was really inserted; a row that differs from its namesake is an alarm, never an
overwrite, but for the late record of an exchange that was swept: that becomes the difference.

A batch goes in whole; if it turns out that one of its rows was here before, or cannot be stored, nothing of
that has happened, and it goes in again with care: only odd batches pay for being odd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Engine, select, union_all

from proxy.billing.entries import LedgerEntry
from proxy.ledger.schema.tables import dead_letters, ledger_entries
from proxy.ledger.settling.clock import LedgerClock
from proxy.ledger.settling.settling import (
    Arrival,
    DeadLetter,
    DuplicateInBatchError,
    Settled,
    Settling,
    Statements,
    attempts,
)
from proxy.storage.database import reading, refused_row, writing

__all__ = ["Arrival", "DeadLetter", "LedgerStore", "Settled"]


class LedgerStore:
    """Writes the ledger. Safe to use from several threads, processes and machines at once."""

    def __init__(
        self, engine: Engine, *, content_hash: Callable[[LedgerEntry], str], clock: Callable[[], float]
    ) -> None:
        """`content_hash`: equal for equal entries and for no others. `clock`: Unix seconds."""
        self._engine = engine
        self._clock = LedgerClock(engine.dialect, clock)
        self._statements = Statements(engine.dialect, content_hash)

    def settle(self, arrivals: Sequence[Arrival], letters: Sequence[DeadLetter] = ()) -> Settled:
        """Put `arrivals` and `letters` down durably, in one transaction. Idempotent.

        Raises LedgerUnavailable: nothing, or (only the answer was lost) everything was done; do it again.
        """
        try:
            batch = self._statements.batch([*arrivals, *attempts(arrivals)]) if arrivals else None
            with self.settling() as settling:
                return settling.settle_new(batch, letters)
        except DuplicateInBatchError:
            pass
        except Exception as error:
            if not refused_row(error):
                raise
        with self.settling() as settling:
            return settling.settle_any(arrivals, letters)

    @contextmanager
    def settling(self) -> Iterator[Settling]:
        """A transaction in which nobody else settles. Raises LedgerUnavailable."""
        with writing(self._engine) as connection:
            yield Settling(self._statements, connection, self._clock.tick(connection))

    def receipts(self, node: str, low: int, high: int) -> set[int]:
        """Which records low..high of this node's journal the ledger has, as entries or as dead letters.

        Raises LedgerUnavailable.
        """
        found = [
            select(table.c.journal_seq).where(table.c.node == node, table.c.journal_seq.between(low, high))
            for table in (ledger_entries, dead_letters)
        ]
        with reading(self._engine) as connection:
            return set(connection.execute(union_all(*found)).scalars())
