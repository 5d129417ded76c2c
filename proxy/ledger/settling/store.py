"""The settling transaction.

Invariants: entries, balances, daily usage and dead letters commit together or not at all; sums change only for entries
that were inserted; an arrival that differs from the stored entry with its identity becomes a dead letter and never
overwrites it, except the late record of a swept exchange, which is booked as an adjustment.

A batch is inserted as a whole; if a row exists already or is rejected, the transaction rolls back and the batch is
settled row by row. Only such batches pay for the comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Engine, select, union_all

from proxy.billing.entries import LedgerEntry
from proxy.ledger.schema.tables import dead_letters, ledger_entries
from proxy.ledger.settling.clock import LedgerClock
from proxy.ledger.settling.history import LedgerState, ledger_state
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


Receipt = tuple[int, str | None]
"""a number in a node's journal, and the exchange of the record that had it; None: the record could not be read"""


class LedgerStore:
    """Writes the ledger. Safe for concurrent use by threads, processes and machines."""

    def __init__(
        self, engine: Engine, *, content_hash: Callable[[LedgerEntry], str], clock: Callable[[], float]
    ) -> None:
        """`content_hash`: equal only for equal entries. `clock`: Unix seconds."""
        self._engine = engine
        self._clock = LedgerClock(engine.dialect, clock)
        self._statements = Statements(engine.dialect, content_hash)

    def settle(self, arrivals: Sequence[Arrival], letters: Sequence[DeadLetter] = ()) -> Settled:
        """Store `arrivals` and `letters` durably, in one transaction. Idempotent.

        Raises LedgerUnavailable: nothing was stored, or everything was and the answer was lost; call it again.
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
        """A settling transaction, which excludes all others. Raises LedgerUnavailable."""
        with writing(self._engine) as connection:
            yield Settling(self._statements, connection, self._clock.tick(connection))

    def state(self) -> LedgerState:
        """How far the ledger is, and in which history of its server. Raises LedgerUnavailable."""
        return ledger_state(self._engine)

    def receipts(self, node: str, low: int, high: int) -> set[Receipt]:
        """The node's journal records, numbered from `low` to `high`, that are entries or dead letters.

        Raises LedgerUnavailable.
        """
        queries = [
            select(table.c.journal_seq, table.c.exchange_id).where(
                table.c.node == node, table.c.journal_seq.between(low, high)
            )
            for table in (ledger_entries, dead_letters)
        ]
        with reading(self._engine) as connection:
            return {(seq, exchange_id) for seq, exchange_id in connection.execute(union_all(*queries))}
