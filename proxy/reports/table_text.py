"""Entries as table lines for a terminal: the columns that fit, or those that were chosen. `--json` has all fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from proxy.billing.attempts import unknown_costs
from proxy.billing.details import EntryDetails
from proxy.billing.entries import EntryKind, LedgerEntry
from proxy.billing.money import usd_text
from proxy.billing.record import Outcome
from proxy.foundation.times import iso_utc
from proxy.reports.tables import Column, Table


def _count(name: str) -> Callable[[LedgerEntry], str]:
    def cell(entry: LedgerEntry) -> str:
        count = getattr(entry, name)
        return "–" if count is None else str(count)

    return cell


def _charge(entry: LedgerEntry) -> str:
    return "unpriced" if entry.charge_nusd is None else usd_text(entry.charge_nusd)


def _cost(entry: LedgerEntry) -> str:
    if entry.cost_nusd is None:
        return "unknown"
    return usd_text(entry.cost_nusd) + (" + unknown" if unknown_costs(entry) else "")


_SEVERITY = {
    Outcome.UPSTREAM_FAILED: "error", Outcome.UPSTREAM_STALLED: "error", Outcome.CRASHED: "error",
    Outcome.REFUSED_UPSTREAM: "warning", Outcome.BUDGET_CUT: "warning", Outcome.SHUT_DOWN: "warning",
}  # fmt: skip
COLUMNS: Mapping[str, Column] = {
    "exchange": Column("EXCHANGE", 36, lambda entry: entry.exchange_id),
    "time": Column("TIME (UTC)", 19, lambda entry: iso_utc(entry.started_at)[:19].replace("T", " ")),
    "key": Column("KEY", 10, lambda entry: entry.key_alias),
    "model": Column("MODEL", 22, lambda entry: entry.model),
    "provider": Column("PROVIDER", 12, lambda entry: entry.provider),
    "outcome": Column("OUTCOME", 16, lambda entry: entry.outcome, severity=lambda entry: _SEVERITY.get(entry.outcome)),
    "prompt": Column("PROMPT", 7, _count("prompt_tokens"), right=True),
    "cached": Column("CACHED", 6, _count("cached_tokens"), right=True),
    "output": Column("OUTPUT", 7, _count("completion_tokens"), right=True),
    "charge": Column("CHARGE USD", 14, _charge, right=True),
    "cost": Column("COST USD", 17, _cost, right=True),
    "why": Column("WHY", 0, lambda entry: why(entry)),
}
USUAL = ("time", "key", "model", "outcome", "prompt", "cached", "output", "charge", "why")
ENTRIES = Table(COLUMNS, USUAL, left_out=("why", "cached", "outcome", "prompt", "output", "key"))


def _origin(details: EntryDetails) -> Iterator[str]:
    """Where the usage is from and who pays the provider, if that is unusual."""
    if isinstance(details.imported, dict):
        yield f"imported from {details.imported.get('source')}"
    if isinstance(details.byok, dict):
        listed = details.byok.get("list_usd")
        yield "with the client's own credential" + ("" if listed is None else f", {listed} USD at list price")


def why(entry: LedgerEntry) -> str:
    """A short explanation: the source of the counts and the billed part."""
    details = EntryDetails.of(entry.details)
    if entry.kind in (EntryKind.ADJUSTMENT, EntryKind.CREDIT):
        stands = f"; set by an operator, unchanged: {', '.join(details.stands)}" if details.stands else ""
        return f"{entry.kind}: {details.why or '?'}{stands}"
    if entry.kind == EntryKind.ATTEMPT:
        return f"{EntryKind.ATTEMPT} {entry.seq}: {entry.provider} {details.failed or '?'}"
    if entry.usage_source == "estimated":
        error = details.expected_error
        source = "estimated" + ("" if entry.estimator is None else f" by {entry.estimator}")
        source += f", ±{error:.0%}" if isinstance(error, float) else ""
    else:
        source = {"reported": "reported by the provider", "none": "no usage known"}[entry.usage_source]
    hidden = details.hidden_reasoning
    if hidden is not None:
        source += f", including {hidden} hidden reasoning" if hidden else ", hidden reasoning may be missing"
    parts = [source, f"billed: {details.billed or '?'}", *_origin(details)]
    parts += [str(word) for word in (details.policy, details.failed) if word is not None]
    parts += [f"instead of {details.fallback.get('model')}, by a limit"] if isinstance(details.fallback, dict) else []
    parts += [f"no price for {', '.join(details.unpriced_units)}"] if details.unpriced_units else []
    parts += [f"not read: {', '.join(details.unread)}"] if details.unread else []
    parts += [] if details.upstream_status is None else [f"upstream status {details.upstream_status}"]
    parts += [f"cost of the attempt at {', '.join(unknown)} unknown"] if (unknown := unknown_costs(entry)) else []
    return "; ".join(parts)
