"""What all checks of the ledger are made of: what to look at, and what was found."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

from proxy.billing.money import usd_text
from proxy.ledger.schema.tables import ledger_entries

# Enough to see what is wrong; how many there are is said beside them.
EXAMPLES_MAX = 10


@dataclass(frozen=True, slots=True)
class CheckScope:
    """What is looked at. Times: Unix seconds by the ledger's clock."""

    now: float
    since: float | None
    """only what was settled at or after this; None: everything"""
    grace_s: float
    """what is younger may be on its way"""


@dataclass(slots=True)
class CheckResult:
    """What a check has found so far."""

    differences: int = 0
    in_flight: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)

    def differs(self, count: int = 1, /, **example: Any) -> None:
        """Count it, and keep the first few to show."""
        self.differences += count
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append({name: _shown(name, value) for name, value in example.items()})


@dataclass(frozen=True, slots=True)
class RecordsInFlight:
    """What is known of records on their way. Read it before the ledger: what is settled meanwhile is then there."""

    queued: Collection[tuple[str, int]] = ()
    """(node, journal seq) of the records that are in the queue"""
    oldest_age_s: float | None = None
    """how long the oldest record has been there; None: there is no queue"""
    leased: Mapping[str, Collection[str]] = field(default_factory=dict)
    """node → the exchanges that it says are running"""


def settled(query: Any, scope: CheckScope) -> Any:
    """The part of a query of entries that is within the scope."""
    return query if scope.since is None else query.where(ledger_entries.c.settled_at >= scope.since)


def _shown(name: str, value: Any) -> Any:
    """As JSON may hold it: money as a decimal string of USD."""
    if isinstance(value, Decimal):
        value = str(value) if value.is_nan() else int(value)
    if name.endswith("_usd") and isinstance(value, int):
        return usd_text(value)
    return str(value) if isinstance(value, date) else value
