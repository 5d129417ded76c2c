"""One exchange as lines for a terminal: the request, the counts, and each item of its charge and cost."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from proxy.billing.attempts import is_cost_known, listed_attempts, unknown_costs
from proxy.billing.entries import EntryKind, LedgerEntry
from proxy.billing.money import Nusd, usd_text
from proxy.foundation.times import iso_utc
from proxy.reports.dimensions import ShownDimension, dimensions_text
from proxy.reports.exchanges import SettledExchange
from proxy.reports.explain import batch_text, correction_text, stated_text, sum_text
from proxy.reports.flags import contradiction_lines, flag_lines, unread_lines
from proxy.reports.table_text import why

_NAME_CHARS = 12


def exchange_lines(exchange: SettledExchange, shown: Mapping[str, ShownDimension]) -> Iterator[str]:
    """The terminal entry, then its attempts and corrections in their order, then the total charge. `shown`: the values
    of its dimensions, by value id."""
    entry = exchange.terminal
    model = entry.model
    if entry.upstream_model != entry.model:
        model += f" (provider model: {entry.upstream_model})"
    yield from _named({
        "exchange": entry.exchange_id,
        "began": f"{iso_utc(entry.started_at)}, took {entry.duration_ms:,.1f} ms"
        + ("" if entry.first_token_ms is None else f", first token after {entry.first_token_ms:,.1f} ms"),
        "key": f"{entry.key_alias} ({entry.key_id})",
        "model": f"{model} at {entry.provider}, {entry.endpoint}",
        "used by": dimensions_text(exchange.dimensions, shown),
        "outcome": entry.outcome,
        "tokens": _tokens(entry),
        "why": why(entry),
        "charge": _money(entry.charge_nusd, "unpriced"),
        "": " ".join(filter(None, (batch_text(entry), sum_text(entry), stated_text(entry)))),
        "cost": _money(entry.cost_nusd, "unknown") + _of_attempts(entry),
    })  # fmt: skip
    for text in (*flag_lines(entry), *contradiction_lines(entry), *unread_lines(entry)):
        yield f"{'':{_NAME_CHARS}}{text}"
    for attempt in listed_attempts(entry):
        billed = not is_cost_known(attempt)
        status = "" if attempt.status is None else f" (status {attempt.status})"
        cost = "unknown: the provider may bill it" if billed else "0 USD"
        yield from _named(
            {"attempt": f"{attempt.provider}: {attempt.failed}{status}", "": f"cost {cost}, charge 0 USD"}
        )
    total, cost_in_all = entry.charge_nusd, entry.cost_nusd
    for later in exchange.entries[1:]:
        yield ""
        yield from _named({
            later.kind: why(later),
            "charge": _money(later.charge_nusd, "unpriced"),
            "cost": _money(later.cost_nusd, "unknown"),
            "": correction_text([one for one in exchange.entries if one.kind != later.kind or one.seq <= later.seq])
            if later.kind == EntryKind.ADJUSTMENT else "",
        })  # fmt: skip
        total, cost_in_all = _sum(total, later.charge_nusd), _sum(cost_in_all, later.cost_nusd)
    if len(exchange.entries) > 1:
        yield ""
        cost = _money(cost_in_all, "unknown") + _of_attempts(entry)
        yield from _named({"total": f"{_money(total, 'unpriced')}, cost {cost}"})
    yield ""
    yield from _named({"details": json.dumps(entry.details, ensure_ascii=False, indent=2)})


def _of_attempts(entry: LedgerEntry) -> str:
    """The words after a cost that does not include failed attempts of unknown cost; empty: there are none."""
    providers = unknown_costs(entry)
    return f", and an unknown cost of the attempt at {', '.join(providers)}" if providers else ""


def _named(values: dict[str, str]) -> Iterator[str]:
    for name, value in values.items():
        first, *others = value.split("\n")
        if first:
            yield f"{name:{_NAME_CHARS}}{first}"
        yield from (f"{'':{_NAME_CHARS}}{other}" for other in others)


def _sum(one_nusd: Nusd | None, other_nusd: Nusd | None) -> Nusd | None:
    return None if one_nusd is None or other_nusd is None else Nusd(one_nusd + other_nusd)


def _money(nusd: int | None, absent: str) -> str:
    return absent if nusd is None else f"{usd_text(nusd)} USD"


def _tokens(entry: LedgerEntry) -> str:
    counts = {
        "prompt": entry.prompt_tokens, "cached": entry.cached_tokens, "output": entry.completion_tokens,
        "incl. reasoning": entry.reasoning_tokens,
    }  # fmt: skip
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count is not None) or "none known"
