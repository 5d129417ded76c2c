"""The settling transaction.

Invariants: entries, balances, daily usage and dead letters commit together or not at all; sums change only for entries
that were inserted; an arrival that differs from the stored entry with its identity becomes a dead letter and never
overwrites it, except the late record of a swept exchange, which is booked as an adjustment.

A batch is inserted as a whole; if a row exists already or is rejected, the transaction rolls back and the batch is
settled row by row. Only such batches pay for the comparison.

Shards insert concurrently. A transaction that reads stored entries and writes by them (comparison, correction, closing)
excludes all shards. Two shards that insert the same entry exclude each other by the unique key: the later one finds
the entry stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from sqlalchemy import Engine, select, union_all

from proxy.billing.entries import EntryKind, LedgerEntry
from proxy.ledger.schema.tables import dead_letters, ledger_entries
from proxy.ledger.settling.clock import LedgerClock, clock_id
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
"""number of a record in a node's journal, and the exchange of the record; None: the record could not be read"""


class LedgerStore:
    """Writes the ledger. Safe for concurrent use by threads, processes and machines."""

    def __init__(
        self,
        engine: Engine,
        *,
        content_hash: Callable[[LedgerEntry], str],
        clock: Callable[[], float],
        shard: int | None = None,
    ) -> None:
        """`content_hash`: equal only for equal entries. `clock`: Unix seconds. `shard`: the shard that `settle`
        excludes, whose clock must exist; None: all shards."""
        self._engine = engine
        self._content_hash, self._unix_time = content_hash, clock
        self._clocks = LedgerClock(engine.dialect, clock)
        self._own_clock = self._clocks if shard is None else LedgerClock(engine.dialect, clock, shard)
        self._statements = Statements(engine.dialect, content_hash, clock_id(shard or 0))

    def of_shard(self, shard: int) -> LedgerStore:
        """The store that settles this shard."""
        return LedgerStore(self._engine, content_hash=self._content_hash, clock=self._unix_time, shard=shard)

    def settle(self, arrivals: Sequence[Arrival], letters: Sequence[DeadLetter] = ()) -> Settled:
        """Store `arrivals` and `letters` durably, in one transaction. Idempotent.

        Raises LedgerUnavailable: nothing was stored, or everything was and the confirmation was lost; call it again.
        """
        try:
            batch = self._statements.batch([*arrivals, *attempts(arrivals)]) if arrivals else None
            with self._settling(self._own_clock) as settling:
                return settling.settle_new(batch, letters)
        except DuplicateInBatchError:
            pass
        except Exception as error:
            if not refused_row(error):
                raise
        with self.settling() as settling:
            return settling.settle_any(arrivals, letters)

    def settling(self) -> AbstractContextManager[Settling]:
        """A settling transaction, which excludes all others. Raises LedgerUnavailable."""
        return self._settling(self._clocks)

    @contextmanager
    def _settling(self, clock: LedgerClock) -> Iterator[Settling]:
        with writing(self._engine) as connection:
            yield Settling(self._statements, connection, clock.tick(connection))

    def recorded(self, exchange_ids: Collection[str]) -> set[str]:
        """The exchanges among these that have a terminal entry. Raises LedgerUnavailable."""
        columns = ledger_entries.c
        query = select(columns.exchange_id).where(
            columns.exchange_id.in_(list(exchange_ids)), columns.kind == EntryKind.USAGE
        )
        with reading(self._engine) as connection:
            return set(connection.execute(query).scalars())

    def state(self) -> LedgerState:
        """The ledger's clock and its server's timeline. Raises LedgerUnavailable."""
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
