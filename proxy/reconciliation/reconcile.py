"""Is the ledger right? Every invariant that can be checked from outside, on a live system.

Law: it only reads, and all in one snapshot, so that what is being settled is never a difference. What is on its way is
told from what is lost by its age. It finds and says; it mends nothing.

Cost: on two cores 9 s per million entries on Postgres, two thirds of it for the prices, and about as much on SQLite;
with `since`, as much for what was settled since, and 0.7 s per million to find it. While it lasts, the snapshot keeps
old rows from being cleared away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, func, select

from proxy.reconciliation import check_credits, check_entries, check_receipts, check_sums
from proxy.reconciliation.check_receipts import Journals
from proxy.reconciliation.integrity import CheckResult, CheckScope, RecordsInFlight
from proxy.storage.database import is_shared, reading

# A record is in the ledger within seconds; within minutes where workers die of its neighbours or servers are restarted.
GRACE_S = 300.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One invariant, and what differs from it."""

    name: str
    description: str
    """the invariant, in words"""
    differences: int
    examples: tuple[Mapping[str, Any], ...]
    """the first few of them; as JSON may hold them"""
    in_flight: int
    """what looks like a difference and is only on its way"""

    @property
    def ok(self) -> bool:
        """Nothing differs."""
        return self.differences == 0


def reconcile(
    engine: Engine,
    *,
    clock: Callable[[], float],
    since: float | None = None,
    grace_s: float = GRACE_S,
    outside: RecordsInFlight | None = None,
) -> list[Finding]:
    """Every check, in a fixed order. Raises LedgerUnavailable.

    `clock`: Unix seconds, where the database has no clock of its own. `since`: Unix seconds; only what was settled then
    or later. `outside`: what is known of the queue; read before this is called.
    """
    with snapshot(engine) as connection:
        scope = CheckScope(_now(connection, clock), since, grace_s)
        return [
            Finding(name, description, found.differences, tuple(found.examples), found.in_flight)
            for name, description, found in _findings(connection, scope, outside or RecordsInFlight())
        ]


def _findings(
    connection: Connection, scope: CheckScope, outside: RecordsInFlight
) -> Iterator[tuple[str, str, CheckResult]]:
    """Name, meaning, and what was found."""
    for name, description, check in (
        ("terminal", "each exchange has one terminal entry", check_entries.one_terminal),
        ("duplicates", "no (exchange, kind, seq) twice", check_entries.no_duplicate),
        ("adjustments", "each refers to its exchange and comes to what it says", check_entries.adjustments),
        ("attempts", "each that an exchange names has its line, which charges nothing", check_entries.attempts),
        ("credits", "each top-up is as it was written", check_credits.credits_are_whole),
        ("balances", "each balance is the sum of its days and top-ups", check_sums.balances_add_up),
        ("days", "each day, key and model is the sum of its entries", check_sums.days_add_up),
        ("numbers", "tokens are integers, money is whole nano-USD", check_sums.whole_numbers),
        ("counts", "nothing is negative, no part is more than its whole", check_entries.counts),
        ("prices", "charge and cost follow from tokens and the pinned price", check_entries.prices),
        ("clock", "no entry is later than the ledger's clock", check_receipts.clock_is_ahead),
    ):
        yield name, description, check(connection, scope)
    journals = Journals(connection, scope, outside.queued).find()
    yield "journals", "every record that a journal closed has arrived, once", journals
    yield "conflicts", "no two contents under one name", check_receipts.open_letters(connection, conflicts=True)
    yield "dead letters", "none is open", check_receipts.open_letters(connection, conflicts=False)
    if outside.oldest_age_s is not None:
        leases = check_receipts.leases_end(connection, scope, outside.leased)
        yield "queue", "no record waits for longer than it may", check_receipts.queue_moves(scope, outside)
        yield "leases", "nothing runs that has been in the ledger for long", leases


@contextmanager
def snapshot(engine: Engine) -> Iterator[Connection]:
    """A transaction that sees one state of the database, for as long as it takes."""
    with reading(engine) as connection:
        if is_shared(connection):
            for limit in ("statement_timeout", "idle_in_transaction_session_timeout"):
                connection.exec_driver_sql(f"SET LOCAL {limit} = 0")
        yield connection


def _now(connection: Connection, clock: Callable[[], float]) -> float:
    if not is_shared(connection):
        return clock()
    return float(connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())
