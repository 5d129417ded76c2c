"""The scope and the result of a check."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

from proxy.billing.money import usd_text
from proxy.ledger.schema.tables import ledger_entries

# Enough to see the fault; the number of differences is reported too.
EXAMPLES_MAX = 10


@dataclass(frozen=True, slots=True)
class CheckScope:
    """The part of the ledger to check. Times: Unix seconds by the ledger's clock."""

    now: float
    since: float | None
    """only entries settled at or after this; None: all"""
    grace_s: float
    """younger records may be in flight"""


@dataclass(slots=True)
class CheckResult:
    """The differences found so far."""

    differences: int = 0
    in_flight: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)

    def differs(self, count: int = 1, /, **example: Any) -> None:
        """Count differences, and keep the first few as examples."""
        self.differences += count
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append({name: _shown(name, value) for name, value in example.items()})


@dataclass(frozen=True, slots=True)
class RecordsInFlight:
    """Records that are not settled yet. Read it before the ledger: records settled meanwhile are then found there."""

    queued: Collection[tuple[str, int]] = ()
    """(node, journal seq) of the records in the queue"""
    oldest_age_s: float | None = None
    """age of the oldest record in the queue; None: there is no queue"""
    leased: Mapping[str, Collection[str]] = field(default_factory=dict)
    """node → the exchanges that the node has leases on"""


def settled(query: Any, scope: CheckScope) -> Any:
    """A query of entries, restricted to the scope."""
    return query if scope.since is None else query.where(ledger_entries.c.settled_at >= scope.since)


def _shown(name: str, value: Any) -> Any:
    """The value for JSON: money as a decimal string in USD."""
    if isinstance(value, Decimal):
        value = str(value) if value.is_nan() else int(value)
    if name.endswith("_usd") and isinstance(value, int):
        return usd_text(value)
    return str(value) if isinstance(value, date) else value
