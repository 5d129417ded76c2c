"""Entries as table lines for a terminal: the main columns and a short explanation. `--json` has all fields."""

from __future__ import annotations

from proxy.billing.details import EntryDetails
from proxy.billing.entries import EntryKind, LedgerEntry
from proxy.billing.money import usd_text
from proxy.foundation.times import iso_utc

_COLUMNS = (
    ("TIME (UTC)", 19), ("KEY", 10), ("MODEL", 22), ("OUTCOME", 16),
    ("PROMPT", 7), ("CACHED", 6), ("OUTPUT", 7), ("CHARGE USD", 14), ("WHY", 0),
)  # fmt: skip
_RIGHT = frozenset(("PROMPT", "CACHED", "OUTPUT", "CHARGE USD"))


def _row(cells: tuple[str, ...]) -> str:
    parts = []
    for (title, width), cell in zip(_COLUMNS, cells, strict=True):
        shown = cell if not width or len(cell) <= width else cell[: width - 1] + "…"
        parts.append(shown.rjust(width) if title in _RIGHT else shown.ljust(width))
    return "  ".join(parts).rstrip()


HEADER = _row(tuple(title for title, _ in _COLUMNS))


def line(entry: LedgerEntry) -> str:
    """The table line of one entry."""
    counts = (entry.prompt_tokens, entry.cached_tokens, entry.completion_tokens)
    return _row((
        iso_utc(entry.started_at)[:19].replace("T", " "), entry.key_alias, entry.model, entry.outcome,
        *("–" if count is None else str(count) for count in counts),
        "unpriced" if entry.charge_nusd is None else usd_text(entry.charge_nusd), why(entry),
    ))  # fmt: skip


def why(entry: LedgerEntry) -> str:
    """A short explanation: the source of the counts and the billed part."""
    details = EntryDetails.of(entry.details)
    if entry.kind in (EntryKind.ADJUSTMENT, EntryKind.CREDIT):
        stands = f"; set by an operator, stands: {', '.join(details.stands)}" if details.stands else ""
        return f"{entry.kind}: {details.why or '?'}{stands}"
    if entry.kind == EntryKind.ATTEMPT:
        return f"{EntryKind.ATTEMPT} {entry.seq}: {entry.provider} {details.failed or '?'}"
    if entry.usage_source == "estimated":
        error = details.expected_error
        source = f"estimated by {entry.estimator}" + (f", ±{error:.0%}" if isinstance(error, float) else "")
    else:
        source = {"reported": "reported by the provider", "none": "no usage known"}[entry.usage_source]
    hidden = details.hidden_reasoning
    if hidden is not None:
        source += f", including {hidden} hidden reasoning" if hidden else ", hidden reasoning may be missing"
    parts = [source, f"billed: {details.billed or '?'}"]
    parts += [str(word) for word in (details.policy, details.failed) if word is not None]
    parts += [f"no price for {', '.join(details.unpriced_units)}"] if details.unpriced_units else []
    parts += [f"not read: {', '.join(details.unread)}"] if details.unread else []
    parts += [] if details.upstream_status is None else [f"upstream status {details.upstream_status}"]
    return "; ".join(parts)
