"""The error of estimates in production: against the usage that providers reported when they were asked afterwards.

Invariants: the check only reads. An exchange counts once, with its estimate at its end and the differences of one
adjustment. Left out are exchanges whose counts an operator had set, and those that another proxy had recorded first:
there the differences are not those to the estimate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, select

from proxy.billing.adjustment import BY_PROVIDER
from proxy.billing.details import EntryDetails, detail_name
from proxy.billing.entries import COUNTS, EntryKind, field_named
from proxy.billing.money import ZERO_NUSD, Nusd
from proxy.ledger.amounts import rows_of
from proxy.ledger.schema.tables import ledger_entries
from proxy.metering.usage import UsageSource
from proxy.reconciliation.reconcile import snapshot


@dataclass(slots=True)
class CountError:
    """The error of one count over several exchanges."""

    exchanges: int = 0
    estimated: int = 0
    reported: int = 0
    relative: float = 0.0
    """the sum of the absolute relative errors"""

    def add(self, estimated: int | None, difference: int | None) -> None:
        """Count an exchange; one without tokens has no relative error."""
        guess = estimated or 0
        truth = guess + (difference or 0)
        if truth > 0:
            self.exchanges += 1
            self.estimated += guess
            self.reported += truth
            self.relative += abs(guess - truth) / truth

    @property
    def mean(self) -> float | None:
        """The mean absolute relative error; None: no exchange has the count."""
        return self.relative / self.exchanges if self.exchanges else None

    @property
    def bias(self) -> float | None:
        """All estimated tokens over all reported ones."""
        return self.estimated / self.reported if self.reported else None


@dataclass(slots=True)
class ModelEstimates:
    """The estimates of one model at one provider. Money: nUSD."""

    provider: str
    model: str
    unanswered: int = 0
    """exchanges whose usage the provider did not report afterwards"""
    prompt: CountError = field(default_factory=CountError)
    completion: CountError = field(default_factory=CountError)
    reported: int = 0
    """exchanges whose usage the provider reported afterwards"""
    charge_nusd: Nusd = ZERO_NUSD
    """the sum of the adjustments' charges"""


def estimates(engine: Engine, since: float | None = None) -> list[ModelEstimates]:
    """By provider and model, sorted. `since`: Unix seconds; only adjustments that were settled then or later. Raises
    LedgerUnavailable."""
    found: dict[tuple[str, str], ModelEstimates] = {}
    for row in _rows(engine, since):
        stands = EntryDetails.of(row.details).stands or ()
        if any(field_named(name) in COUNTS for name in stands):
            continue
        where = (row.provider, row.model)
        of_model = found.setdefault(where, ModelEstimates(*where))
        if row.usage_source != UsageSource.PROVIDER_LATER:
            of_model.unanswered += 1
            continue
        of_model.reported += 1
        of_model.prompt.add(row.guessed_prompt, row.prompt_tokens)
        of_model.completion.add(row.guessed_completion, row.completion_tokens)
        of_model.charge_nusd = Nusd(of_model.charge_nusd + (row.charge_nusd or 0))
    return [found[where] for where in sorted(found)]


def _rows(engine: Engine, since: float | None) -> Iterator[Any]:
    change, terminal = ledger_entries.alias("change"), ledger_entries.alias("terminal")
    query = (
        select(
            change.c.provider, change.c.model, change.c.usage_source, change.c.prompt_tokens,
            change.c.completion_tokens, change.c.charge_nusd, change.c.details,
            terminal.c.prompt_tokens.label("guessed_prompt"),
            terminal.c.completion_tokens.label("guessed_completion"),
        )
        .join(terminal, terminal.c.exchange_id == change.c.exchange_id)
        .where(
            change.c.kind == EntryKind.ADJUSTMENT,
            change.c.details[detail_name(EntryDetails.by)].as_string() == BY_PROVIDER,
            terminal.c.kind == EntryKind.USAGE,
            terminal.c.details[detail_name(EntryDetails.asked_later)].as_string().is_not(None),
        )
    )  # fmt: skip
    with snapshot(engine) as connection:
        yield from rows_of(connection, query if since is None else query.where(change.c.settled_at >= since))
