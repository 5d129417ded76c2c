"""Checks of every invariant of the ledger, on a live system.

Invariants: the checks only read, in one snapshot, so settling in progress is never a difference; records in flight are
distinguished from lost ones by their age; nothing is repaired.

Cost: on two cores 9 s per million entries on Postgres, two thirds of it for the prices, and about as much on SQLite;
60 s per million entries of closed months; 5 s per million dimensions of exchanges; with `since`, as much for the
entries settled since, and 0.7 s per million to find them. The open snapshot delays the cleanup of old row versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection, Engine, func, select

from proxy.reconciliation import check_entries, check_periods, check_receipts, check_sums
from proxy.reconciliation.check_dimensions import dimensions_add_up
from proxy.reconciliation.check_grants import grants_add_up
from proxy.reconciliation.check_receipts import Journals
from proxy.reconciliation.integrity import CheckResult, CheckScope, RecordsInFlight
from proxy.storage.database import is_shared, reading
from proxy.storage.postgres import remove_time_limits

# A record is settled within seconds, or within minutes if workers crash or servers are restarted.
GRACE_S = 300.0


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """The result of checking one invariant."""

    name: str
    description: str
    """the invariant in words"""
    differences: int
    examples: tuple[Mapping[str, Any], ...]
    """the first few differences, as JSON values"""
    in_flight: int
    """missing records that may still arrive"""

    @property
    def ok(self) -> bool:
        """True if no difference was found."""
        return self.differences == 0


def reconcile(
    engine: Engine,
    *,
    clock: Callable[[], float],
    since: float | None = None,
    grace_s: float = GRACE_S,
    in_flight: RecordsInFlight | None = None,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> list[CheckFinding]:
    """Run every check, in a fixed order. Raises LedgerUnavailable.

    `clock`: Unix seconds, for a database without a clock. `since`: Unix seconds; only entries settled then or later.
    `in_flight`: the records in flight, read before this call. `progress`: called before each check with its name, the
    number of checks before it, and of all checks.
    """
    findings = []
    with snapshot(engine) as connection:
        scope = CheckScope(_now(connection, clock), since, grace_s)
        checks = _checks(connection, scope, in_flight or RecordsInFlight())
        for number, (name, description, check) in enumerate(checks):
            progress(name, number, len(checks))
            result = check()
            findings.append(
                CheckFinding(name, description, result.differences, tuple(result.examples), result.in_flight)
            )
    return findings


def _checks(
    connection: Connection, scope: CheckScope, in_flight: RecordsInFlight
) -> Sequence[tuple[str, str, Callable[[], CheckResult]]]:
    """Name, meaning and function of each check."""
    of_entries: Sequence[tuple[str, str, Callable[[Connection, CheckScope], CheckResult]]] = (
        ("terminal", "each exchange has one terminal entry", check_entries.one_terminal),
        ("duplicates", "no (exchange, kind, seq) twice", check_entries.no_duplicate),
        ("adjustments", "each refers to its exchange and yields the totals that it states", check_entries.adjustments),
        ("attempts", "each attempt named by an exchange has its own entry, free of charge", check_entries.attempts),
        ("credits", "each top-up equals the entry that was written", check_entries.credits_are_whole),
        ("balances", "each balance is the sum of its daily usage and top-ups", check_sums.balances_add_up),
        ("days", "daily usage by key and model is the sum of its entries", check_sums.days_add_up),
        ("accounts", "daily charges of projects and organizations are those of their keys", check_sums.accounts_add_up),
        ("dimensions", "daily usage by end user, session, run and tag is that of their exchanges", dimensions_add_up),
        ("grants", "granted, burned and expired amounts of grants follow from the entries", grants_add_up),
        ("numbers", "tokens are integers, money is whole nano-USD", check_sums.whole_numbers),
        ("counts", "no number is negative, no part exceeds its whole", check_entries.counts),
        ("prices", "charge and cost follow from tokens and the pinned price", check_entries.prices),
        ("clock", "no entry is later than the ledger's clock", check_receipts.clock_is_ahead),
        ("periods", "the entries of a closed month are those of its statements", check_periods.closed_months_stay),
    )
    journals = Journals(connection, scope, in_flight.queued)
    open_letters = partial(check_receipts.open_dead_letters, connection)
    checks: list[tuple[str, str, Callable[[], CheckResult]]] = [
        *((name, description, partial(check, connection, scope)) for name, description, check in of_entries),
        ("journals", "every closed journal record has arrived, once", journals.find),
        ("conflicts", "no entry has arrived with two contents", partial(open_letters, conflicts=True)),
        ("dead letters", "none is open", partial(open_letters, conflicts=False)),
    ]
    if in_flight.oldest_age_s is not None:
        queue = partial(check_receipts.queue_moves, scope, in_flight)
        leases = partial(check_receipts.leases_end, connection, scope, in_flight.leased)
        checks.append(("queue", "no record has waited longer than the grace time", queue))
        checks.append(("leases", "no settled exchange still has a lease after the grace time", leases))
    return checks


@contextmanager
def snapshot(engine: Engine) -> Iterator[Connection]:
    """A read transaction on one snapshot, without time limits."""
    with reading(engine) as connection:
        if is_shared(connection):
            remove_time_limits(connection)
        yield connection


def _now(connection: Connection, clock: Callable[[], float]) -> float:
    if not is_shared(connection):
        return clock()
    return float(connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())
