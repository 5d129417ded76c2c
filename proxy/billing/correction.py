"""What an operator sets right, and what another price makes of an exchange: each is one more entry.

Law: an exchange is the sum of its entries. Every number of a correction is the difference to that sum, and nothing is
ever overwritten. Money that a person has set stands: a later price does not touch it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid5

import msgspec
from msgspec import structs

from proxy.billing.adjustment import is_statement
from proxy.billing.entries import COUNTS, ENTRIES, TOKENS, UNITS, EntryKind, LedgerEntry, usage_of
from proxy.billing.money import NUSD_PER_USD, usd_text
from proxy.billing.prices import pinned, price_text
from proxy.billing.record import BillableParts, Price
from proxy.billing.settlement import amount, incurred
from proxy.metering.usage import TOKENS_MAX, UNITS_MAX, Usage

MONEY = ("charge_usd", "cost_usd")

# What the longest exchange costs at the highest price that can be configured; a larger amount is a typing error.
AMOUNT_NUSD_MAX = 1_000_000 * NUSD_PER_USD

# A sentence or two, for whoever reads the ledger.
REASON_CHARS_MAX = 500

BY_OPERATOR, BY_RERATE = "operator", "rerate"
CORRECTED = "corrected"
"""the usage_source of token counts that a person has set"""


class CorrectionError(ValueError):
    """A correction that cannot be made; its words are for the operator."""


class CorrectionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What an exchange shall come to. Counts: integers; money: nUSD. None: as it is."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_write_1h_tokens: int | None = None
    audio_prompt_tokens: int | None = None
    audio_completion_tokens: int | None = None
    images: int | None = None
    audio_ms: int | None = None
    characters: int | None = None
    searches: int | None = None
    unbilled_prompt_tokens: int | None = None
    unbilled_completion_tokens: int | None = None
    charge_usd: int | None = None
    cost_usd: int | None = None

    @property
    def given(self) -> dict[str, int]:
        """What is set, by the names of the entry's fields."""
        return {name: value for name, value in structs.asdict(self).items() if value is not None}


class ExchangeTotals(msgspec.Struct, frozen=True):
    """What all entries of an exchange say together."""

    terminal: LedgerEntry
    usage: Usage
    charge_usd: int | None
    """nUSD, as in an entry"""
    cost_usd: int | None
    bills: BillableParts
    source: str
    service_tier: str | None
    """by which the last statement of it says that it was served"""
    price: Mapping[str, Any] | None
    """the tier that its charge was made with last, as the entries show it; None: no price is known"""
    cost: Mapping[str, Any] | None
    by_hand: frozenset[str]
    """what a person has set, by the names of the fields"""
    next_seq: int


def exchange_totals(entries: Iterable[LedgerEntry]) -> ExchangeTotals:
    """What the entries of one exchange, in any order, come to: without what was asked in vain, which comes to nothing.
    Raises CorrectionError if none of them is terminal, and ValueError if one has no counts where they should be."""
    ordered = sorted(
        (one for one in entries if one.kind != EntryKind.ATTEMPT),
        key=lambda one: (one.kind != EntryKind.USAGE, one.seq),
    )
    if not ordered or ordered[0].kind != EntryKind.USAGE:
        raise CorrectionError("no entry of this exchange is in the ledger")
    statements = [one for one in ordered if is_statement(one)]
    corrections = [one for one in ordered if not is_statement(one)]
    said = statements[-1]
    return ExchangeTotals(
        terminal=ordered[0],
        usage=_all(ordered),
        charge_usd=_sum(ordered, "charge_usd"),
        cost_usd=_sum(ordered, "cost_usd"),
        bills=BillableParts(said.details.get("billed", BillableParts.EVERYTHING)),
        source=said.usage_source,
        service_tier=said.details.get("service_tier"),
        price=_last([*statements, *corrections], "price"),
        cost=_last([*statements, *corrections], "cost"),
        by_hand=frozenset(
            name for one in corrections if one.details.get("by") == BY_OPERATOR for name in one.details.get("sets", ())
        ),
        next_seq=1 + max((one.seq for one in ordered if one.kind != EntryKind.USAGE), default=0),
    )


def corrected(now: ExchangeTotals, wanted: CorrectionRequest, why: str) -> LedgerEntry | None:
    """The adjustment that makes an exchange come to what is `wanted`; None if it does already.

    Where tokens are given and money is not, the money is made anew from the price pinned in the exchange's entries.
    Raises CorrectionError for numbers that cannot be.
    """
    _check(wanted, why)
    usage = _usage(now.usage, wanted)
    charge_usd, cost_usd = now.charge_usd, now.cost_usd
    counted = any(name in COUNTS for name in wanted.given)
    if counted and wanted.charge_usd is None:
        charge_usd = _priced(now.price, usage, now.bills, charge_usd)
    if counted and wanted.cost_usd is None:
        cost_usd = _priced(now.cost, usage, incurred(now.source, now.bills), cost_usd)
    sets = {name: usd_text(value) if name in MONEY else value for name, value in wanted.given.items()}
    return _adjustment(
        now,
        usage,
        charge_usd if wanted.charge_usd is None else wanted.charge_usd,
        cost_usd if wanted.cost_usd is None else wanted.cost_usd,
        {"why": why.strip(), "by": BY_OPERATOR, "sets": sets},
    )


def rerated(now: ExchangeTotals, price: Price | None, cost: Price | None) -> LedgerEntry | None:
    """The adjustment that makes an exchange's charge what it is at `price`, and its cost what it is at `cost`.

    A price that is None or has none for what was used, and money set by hand, leave things as they are. None if no
    money differs.
    """
    charge_usd, cost_usd = now.charge_usd, now.cost_usd
    details: dict[str, Any] = {"why": "rerated", "by": BY_RERATE}
    made = None if "charge_usd" in now.by_hand else _at(price, now, now.bills)
    if price is not None and made is not None:
        charge_usd = made
        details["price"] = price_text(price, now.usage.prompt_tokens, now.service_tier)
    made = None if "cost_usd" in now.by_hand else _at(cost, now, incurred(now.source, now.bills))
    if cost is not None and made is not None:
        cost_usd = made
        details["cost"] = price_text(cost, now.usage.prompt_tokens, now.service_tier)
    return _adjustment(now, now.usage, charge_usd, cost_usd, details)


def _at(price: Price | None, now: ExchangeTotals, bills: BillableParts) -> int | None:
    return None if price is None else amount(price, now.usage, bills, now.service_tier)


def unexplained(entries: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    """The corrections among an exchange's entries, in the order they were settled, that do not say what they did."""
    return [
        one
        for place, one in enumerate(entries)
        if one.kind == EntryKind.ADJUSTMENT and not is_statement(one) and not _explained(entries[:place], one)
    ]


def _explained(before: Sequence[LedgerEntry], one: LedgerEntry) -> bool:
    try:
        now = exchange_totals(before)
        if one.details.get("by") == BY_OPERATOR:
            after = exchange_totals([*before, one])
            return all(_shown(after, name) == value for name, value in one.details["sets"].items())
        price, cost = (pinned(one.details[name]) if name in one.details else None for name in ("price", "cost"))
        again = rerated(now, price, cost)
    except (ValueError, TypeError, KeyError, AttributeError):
        return False
    return again is not None and (again.charge_usd, again.cost_usd) == (one.charge_usd, one.cost_usd)


def _shown(after: ExchangeTotals, name: str) -> int | str | None:
    if name in COUNTS:
        count: int | None = getattr(after.usage, name)
        return count
    nusd = getattr(after, name)
    return None if nusd is None else usd_text(nusd)


def _adjustment(
    now: ExchangeTotals, usage: Usage, charge_usd: int | None, cost_usd: int | None, details: dict[str, Any]
) -> LedgerEntry | None:
    """The entry between how things are and how they shall be; None if there is nothing between."""
    if (usage, charge_usd, cost_usd) == (now.usage, now.charge_usd, now.cost_usd):
        return None
    terminal, seq = now.terminal, now.next_seq
    counts = {name: _difference(getattr(now.usage, name), getattr(usage, name)) for name in TOKENS}
    set_by_hand = {"usage_source": CORRECTED, "estimator": None} if usage != now.usage else {}
    priced = {"price_version": details["price"]["version"]} if "price" in details else {}
    if units := _units(now.usage, usage):
        details = {**details, "units": units}
    return structs.replace(
        terminal,
        entry_id=str(uuid5(ENTRIES, f"{terminal.exchange_id}/{EntryKind.ADJUSTMENT}/{seq}")),
        kind=EntryKind.ADJUSTMENT,
        seq=seq,
        events=0,
        bytes=0,
        first_token_ms=None,
        duration_ms=0.0,
        charge_usd=_difference(now.charge_usd, charge_usd),
        cost_usd=_difference(now.cost_usd, cost_usd),
        details={"adjusts": terminal.entry_id, **details},
        **counts,
        **set_by_hand,
        **priced,
    )


def _units(old: Usage, new: Usage) -> dict[str, int]:
    """What changes of the counts that stand among the details, if only from unknown to 0."""
    found = {name: _difference(getattr(old, name), getattr(new, name)) for name in UNITS}
    return {name: count for name, count in found.items() if count or (count == 0 and getattr(old, name) is None)}


def _all(entries: Sequence[LedgerEntry]) -> Usage:
    """What they count, added up; None only where no entry knows."""
    counted = [structs.astuple(usage_of(one)) for one in entries]
    known = ([count for count in counts if count is not None] for counts in zip(*counted, strict=True))
    return Usage(*(sum(counts) if counts else None for counts in known))


def _sum(entries: Sequence[LedgerEntry], name: str) -> int | None:
    """None only if no entry knows."""
    known = [value for one in entries if (value := getattr(one, name)) is not None]
    return sum(known) if known else None


def _last(ordered: Sequence[LedgerEntry], name: str) -> Mapping[str, Any] | None:
    """What is shown of a price by the last entry that shows one."""
    return next((shown for one in reversed(ordered) if isinstance(shown := one.details.get(name), Mapping)), None)


def _difference(old: int | None, new: int | None) -> int | None:
    return None if old is None and new is None else (new or 0) - (old or 0)


def _priced(shown: Mapping[str, Any] | None, usage: Usage, bills: BillableParts, otherwise: int | None) -> int | None:
    """Money at the pinned price; as it was where none is pinned. Raises CorrectionError where that price does not hold
    or prices nothing."""
    if shown is None:
        return otherwise
    price = pinned(shown)
    above = price.tiers[0].above_prompt_tokens
    if above and (usage.prompt_tokens or 0) <= above:
        raise CorrectionError(f"the pinned price holds above {above} prompt tokens: say the money too")
    money = amount(price, usage, bills)
    if money is None:
        raise CorrectionError("the pinned price has none for what is counted then: say the money too")
    return money


_PARTS = (
    ("cached_tokens", "prompt_tokens"),
    ("cache_write_tokens", "prompt_tokens"),
    ("audio_prompt_tokens", "prompt_tokens"),
    ("unbilled_prompt_tokens", "prompt_tokens"),
    ("cache_write_1h_tokens", "cache_write_tokens"),
    ("reasoning_tokens", "completion_tokens"),
    ("audio_completion_tokens", "completion_tokens"),
    ("unbilled_completion_tokens", "completion_tokens"),
)


def _usage(usage: Usage, wanted: CorrectionRequest) -> Usage:
    counts = {name: value for name, value in wanted.given.items() if name in COUNTS}
    after = structs.replace(usage, **counts)
    parts = (after.prompt_tokens, after.completion_tokens)
    if counts.keys() & {"prompt_tokens", "completion_tokens"} and parts[0] is not None and parts[1] is not None:
        after = structs.replace(after, total_tokens=parts[0] + parts[1])
    for part, whole in _PARTS:
        _require_part(after, part, whole, counts)
    return after


def _require_part(usage: Usage, part: str, whole: str, given: Mapping[str, int]) -> None:
    """What the provider has mixed up may stay; what a person sets must be right."""
    count, of = getattr(usage, part), getattr(usage, whole)
    if (part in given or whole in given) and count is not None and count > (of or 0):
        raise CorrectionError(f"{part} ({count}) would be more than {whole} ({of or 0}), of which they are a part")


_MOST = {**dict.fromkeys(MONEY, AMOUNT_NUSD_MAX), "images": UNITS_MAX, "searches": UNITS_MAX}


def _check(wanted: CorrectionRequest, why: str) -> None:
    if not why.strip() or len(why) > REASON_CHARS_MAX or not why.isprintable():
        raise CorrectionError(f"a reason has 1 to {REASON_CHARS_MAX} printable characters")
    if not wanted.given:
        raise CorrectionError("nothing is set: give at least one number")
    for name, value in wanted.given.items():
        if not 0 <= value <= _MOST.get(name, TOKENS_MAX):
            raise CorrectionError(f"{name}: no exchange comes to that")
