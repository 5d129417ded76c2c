"""Clocks of sums that are updated outside the settling transactions, in steps.

Invariant: the clock of such sums is a row of a table, and they contain exactly the entries that were settled until
then: a step adds the next entries and advances the clock in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Engine, Table, select, update

from proxy.ledger.schema.tables import ledger_entries
from proxy.ledger.settling.clock import settled_until
from proxy.storage.database import LedgerUnavailable, writing

_SETTLED_AT = ledger_entries.c.settled_at


class Step(NamedTuple):
    """The entries to add: settled after `after`, until `until`; Unix seconds."""

    connection: Connection
    after: float
    until: float
    is_last: bool
    """False: more entries wait"""

    @property
    def entries(self) -> ColumnElement[bool]:
        """An SQL condition: the entry belongs to this step."""
        return (self.after < _SETTLED_AT) & (self.until >= _SETTLED_AT)


@contextmanager
def next_step(engine: Engine, clock: Table, entries_max: int) -> Iterator[Step | None]:
    """A transaction that adds about `entries_max` entries; None: there are none, or another process is adding. Raises
    LedgerUnavailable."""
    with writing(engine) as connection:
        after = connection.execute(select(clock.c.settled_at).with_for_update(skip_locked=True)).scalar()
        if after is None or (until := settled_until(connection)) <= after:
            yield None
            return
        later = select(_SETTLED_AT).where(after < _SETTLED_AT, until >= _SETTLED_AT).order_by(_SETTLED_AT)
        full = connection.execute(later.offset(entries_max).limit(1)).scalar()
        # A settling transaction is never split.
        yield Step(connection, after, until if full is None else full, is_last=full is None)
        connection.execute(update(clock).values(settled_at=until if full is None else full))


def added_until(connection: Connection, clock: Table) -> float:
    """The time until which settled entries are in the sums; Unix seconds. Raises LedgerUnavailable."""
    until: float | None = connection.execute(select(clock.c.settled_at)).scalar()
    if until is None:
        raise LedgerUnavailable(f"the row of table {clock.name} is missing: was the ledger restored in part?")
    return until
