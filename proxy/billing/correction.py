"""Corrections of an exchange by an operator, and rerating at another price. Each adds an adjustment entry.

Invariants: An exchange is the sum of its entries. Every number of a correction is a difference to that sum, and nothing
is overwritten. Rerating does not change amounts that an operator set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from proxy.billing.adjustment import (
    BY_OPERATOR,
    BY_PROVIDER,
    MONEY,
    difference,
    is_statement,
    set_by_operator,
    stored_total,
    total,
    unit_differences,
    usage_total,
)
from proxy.billing.details import EntryDetails, detail_name
from proxy.billing.entries import COUNTS, TOKENS, EntryKind, LedgerEntry, entry_id, field_named, stored_name, usage_of
from proxy.billing.money import NUSD_PER_USD, Nusd, nusd_from_usd, usd_text
from proxy.billing.pricing.prices import pinned, pinned_or_none, price_text
from proxy.billing.record import BillableParts, Price, PricedUsage
from proxy.billing.reread import ReadAgain
from proxy.billing.settlement import amount, incurred, other_models, other_models_detail
from proxy.billing.units import BILLED_UNITS, BY_PRICE
from proxy.foundation.names import UnknownNameError
from proxy.metering.usage import (
    TOKENS_MAX,
    UNIT_COUNTS,
    UNITS_MAX,
    ServedAs,
    Usage,
    UsageSource,
    served_later,
    service_of,
)

# The longest exchange at the highest configurable price; a larger amount is a typing error.
AMOUNT_NUSD_MAX = 1_000_000 * NUSD_PER_USD

# A sentence or two.
REASON_CHARS_MAX = 500

ADJUSTED_COUNTS = tuple(name for name in COUNTS if name != "total_tokens")
"""the counts that an operator can set; the total is their sum"""

_T = TypeVar("_T")

BY_RERATE = "rerate"
CORRECTED = "corrected"
"""the usage_source of token counts that an operator set"""


class CorrectionError(ValueError):
    """An invalid correction; the message is for the operator."""


class UnknownExchangeError(CorrectionError, UnknownNameError):
    """The ledger has no such exchange."""


class CorrectionRequest(Usage, frozen=True, kw_only=True):
    """The requested totals of an exchange. Counts: integers; money: nUSD. None: unchanged."""

    charge_nusd: Nusd | None = None
    cost_nusd: Nusd | None = None

    @property
    def changes(self) -> dict[str, int]:
        """The requested totals, without those that stay unchanged; by the names of the entry's fields."""
        return {name: value for name, value in structs.asdict(self).items() if value is not None}


class ExchangeTotals(msgspec.Struct, frozen=True):
    """The sum of all entries of an exchange."""

    terminal: LedgerEntry
    statement: LedgerEntry
    """made from the best record: the terminal entry, or the adjustment by a later record, whose numbers are differences
    """
    usage: Usage
    charge_nusd: Nusd | None
    """nUSD, as in an entry"""
    cost_nusd: Nusd | None
    bills: BillableParts
    source: str
    served_as: ServedAs
    """service terms of the last usage or restating entry, or of a usage that was reported afterwards"""
    price: Mapping[str, Any] | None
    """the price tier of the latest charge, in the form of `price_text`; None: unknown"""
    cost: Mapping[str, Any] | None
    stated_nusd: Nusd | None
    """cost that the provider states"""
    other_models: tuple[PricedUsage, ...]
    """usage of other models in the latest statement, at its pinned prices"""
    by_hand: frozenset[str]
    """names of the fields that an operator set"""
    next_seq: int


def exchange_totals(entries: Iterable[LedgerEntry]) -> ExchangeTotals:
    """The sum of the entries of one exchange, in any order. Failed attempts are ignored, and reports of the provider
    that came after an operator had set the counts: they add nothing.
    Raises CorrectionError if the terminal entry is missing, and ValueError if an entry has invalid counts."""
    ordered = sorted(
        (one for one in entries if one.kind != EntryKind.ATTEMPT),
        key=lambda one: (one.kind != EntryKind.USAGE, one.seq),
    )
    if not ordered or ordered[0].kind != EntryKind.USAGE:
        raise UnknownExchangeError("no entry of this exchange is in the ledger")
    statements = [one for one in ordered if is_statement(one)]
    corrections = [one for one in ordered if not is_statement(one) and not _is_moot(one)]
    latest = next(filter(_is_report, corrections), statements[-1])
    stated, read_again = EntryDetails.of(latest.details), _latest_detail(corrections, EntryDetails.read_again, dict)
    each = [*statements, *corrections]
    return ExchangeTotals(
        terminal=ordered[0],
        statement=statements[-1],
        usage=usage_total(ordered),
        charge_nusd=_nusd(total(ordered, "charge_nusd")),
        cost_nusd=_nusd(total(ordered, "cost_nusd")),
        bills=BillableParts(stated.billed or BillableParts.EVERYTHING),
        source=latest.usage_source,
        served_as=_served_as({**latest.details, **_said(read_again)}),
        price=_latest_detail(each, EntryDetails.price, dict),
        cost=_latest_detail(each, EntryDetails.cost, dict),
        stated_nusd=None if stated.stated_usd is None else nusd_from_usd(stated.stated_usd),
        other_models=tuple(other_models(_latest_detail(each, EntryDetails.other_models, list))),
        by_hand=set_by_operator(corrections),
        next_seq=1 + max((one.seq for one in ordered if one.kind != EntryKind.USAGE), default=0),
    )


def _is_report(one: LedgerEntry) -> bool:
    """True if the correction has the usage that the provider reported afterwards."""
    return one.usage_source == UsageSource.PROVIDER_LATER and EntryDetails.of(one.details).by == BY_PROVIDER


def _is_moot(one: LedgerEntry) -> bool:
    """True if the provider reported the usage afterwards, and counts that an operator had set stand."""
    details = EntryDetails.of(one.details)
    return details.by == BY_PROVIDER and any(field_named(name) in COUNTS for name in details.stands or ())


def corrected(now: ExchangeTotals, request: CorrectionRequest, why: str) -> LedgerEntry | None:
    """The adjustment between the totals `now` and the requested ones; None if they are equal.

    If counts are set and money is not, the money is calculated from the price pinned in the exchange's entries.
    Raises CorrectionError for invalid numbers.
    """
    _check(request, why)
    after = structs.replace(now, usage=_corrected_usage(now.usage, request))
    charge_nusd = now.charge_nusd if request.charge_nusd is None else request.charge_nusd
    cost_nusd = now.cost_nusd if request.cost_nusd is None else request.cost_nusd
    counted = any(name in COUNTS for name in request.changes)
    if counted and request.charge_nusd is None:
        others = [(one.price, one.usage) for one in now.other_models]
        charge_nusd = _priced(now.price, after, now.bills, charge_nusd, others)
    if counted and request.cost_nusd is None:
        others = [(one.cost, one.usage) for one in now.other_models]
        cost_nusd = _priced(now.cost, after, incurred(now.source, now.bills), cost_nusd, others)
    sets = {stored_name(name): stored_total(name, value) for name, value in request.changes.items()}
    details = EntryDetails(why=why.strip(), by=BY_OPERATOR, sets=sets)
    return _adjustment(now, after.usage, charge_nusd, cost_nusd, details)


def replaced_amounts(entries: Sequence[LedgerEntry], request: CorrectionRequest) -> dict[str, Nusd | None]:
    """The amounts that an operator has set, and that `corrected` calculates anew from the counts of `request`: by
    field, in nUSD. Raises as `exchange_totals`."""
    now, by_hand, counts = exchange_totals(entries), set[str](), frozenset(COUNTS)
    for one in sorted((one for one in entries if one.kind == EntryKind.ADJUSTMENT), key=lambda one: one.seq):
        names = set_by_operator([one])
        by_hand = (by_hand - set(MONEY) if names & counts else by_hand) | (names & set(MONEY))
    if counts.isdisjoint(request.changes):
        return {}
    return {name: getattr(now, name) for name in MONEY if name in by_hand and name not in request.changes}


def changed_totals(before: ExchangeTotals, line: LedgerEntry) -> dict[str, tuple[int | None, int]]:
    """Each count and amount (nUSD) that the adjustment `line` changes, by field: its total before, and its total after.
    A total that becomes known is changed. Raises ValueError for invalid counts."""
    then = {name: (getattr(before.usage, name), getattr(usage_of(line), name)) for name in Usage.__struct_fields__}
    then |= {name: (getattr(before, name), getattr(line, name)) for name in MONEY}
    return {
        name: (old, (old or 0) + change)
        for name, (old, change) in then.items()
        if change is not None and (change or old is None)
    }


def amounts_text(amounts: Mapping[str, Nusd | None]) -> str:
    """The amounts (nUSD, by field) for a message: `the charge of 0.002 USD and the cost of unknown USD`."""
    return " and ".join(
        f"the {name.removesuffix('_nusd')} of {'unknown' if nusd is None else usd_text(nusd)} USD"
        for name, nusd in amounts.items()
    )


def rerated(
    now: ExchangeTotals,
    price: Price | None,
    cost: Price | None,
    of_others: Mapping[str, tuple[Price | None, Price | None]] = MappingProxyType({}),
    read: ReadAgain | None = None,
) -> LedgerEntry | None:
    """The adjustment to the charge at `price` and the cost at `cost`; None if neither amount differs, nor a count.

    An amount stays unchanged if its price list is None or lacks a price for the used units, or if an operator set it.
    `of_others`: the lists of other models that were used, by name; without one, the pinned list applies. `read`: the
    reported usage, read again; it does not apply if an operator set a count.
    """
    charge_nusd, cost_nusd = now.charge_nusd, now.cost_nusd
    details = EntryDetails(why="rerated", by=BY_RERATE)
    before = now.usage
    if read is not None and now.by_hand.isdisjoint(COUNTS) and (then := _read_again(now, read)) != now:
        details.why, details.read_again = "read again", structs.asdict(read.served_as)
        now = then
    others = [_relisted(one, *of_others.get(one.model, (None, None))) for one in now.other_models]
    if others:
        details.other_models = other_models_detail(others)
    if price is not None and "charge_nusd" not in now.by_hand:
        at_price = _at(price, now, now.bills, [(one.price, one.usage) for one in others])
        if at_price is not None:
            charge_nusd, details.price = at_price, price_text(price, now.usage.prompt_tokens, now.served_as)
    if cost is not None and "cost_nusd" not in now.by_hand:
        at_cost = _at(cost, now, incurred(now.source, now.bills), [(one.cost, one.usage) for one in others])
        if at_cost is not None:
            cost_nusd, details.cost = at_cost, price_text(cost, now.usage.prompt_tokens, now.served_as)
    return _adjustment(structs.replace(now, usage=before), now.usage, charge_nusd, cost_nusd, details)


def _read_again(now: ExchangeTotals, read: ReadAgain) -> ExchangeTotals:
    """The totals with the counts and terms of the usage. Other models of earlier entries stay, with their pinned
    lists."""
    others = {one.model: one for one in now.other_models}
    for used in read.other_models:
        found = others.get(used.model, PricedUsage(used.model, used.usage, None, None))
        others[used.model] = structs.replace(found, usage=used.usage)
    return structs.replace(
        now,
        usage=read.usage.filled_from(now.usage),
        served_as=served_later(now.served_as, read.served_as),
        other_models=tuple(others.values()),
    )


def _relisted(one: PricedUsage, price: Price | None, cost: Price | None) -> PricedUsage:
    return structs.replace(one, price=price or one.price, cost=cost or one.cost)


def _at(
    price: Price, now: ExchangeTotals, bills: BillableParts, others: Sequence[tuple[Price | None, Usage]]
) -> Nusd | None:
    return amount(price, now.usage, bills, now.served_as, stated_nusd=now.stated_nusd, others=others)


def unexplained(entries: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    """The corrections whose numbers do not follow from their details. `entries`: of one exchange, as settled."""
    return [
        one
        for index, one in enumerate(entries)
        if one.kind == EntryKind.ADJUSTMENT and not is_statement(one) and not _explained(entries[:index], one)
    ]


def _explained(before: Sequence[LedgerEntry], one: LedgerEntry) -> bool:
    try:
        now = exchange_totals(before)
        details = EntryDetails.of(one.details)
        if details.by == BY_PROVIDER:
            return _as_reported(now, exchange_totals([*before, one]), one)
        if details.by == BY_OPERATOR:
            after, sets = exchange_totals([*before, one]), details.sets or {}
            return all(_total_in(after, field_named(name)) == value for name, value in sets.items())
        price, cost = pinned_or_none(details.price), pinned_or_none(details.cost)
        others = {one.model: (one.price, one.cost) for one in other_models(details.other_models)}
        again = rerated(now, price, cost, others, None if details.read_again is None else _read_in(one, now))
    except (ValueError, TypeError, KeyError, AttributeError):
        return False
    return again is not None and (again.charge_nusd, again.cost_nusd) == (one.charge_nusd, one.cost_nusd)


def _as_reported(before: ExchangeTotals, after: ExchangeTotals, one: LedgerEntry) -> bool:
    """True if the amounts after this adjustment follow from its counts and prices; or, if the provider reported
    nothing afterwards, if it changes nothing."""
    then = (before.charge_nusd, before.cost_nusd)
    if not _is_report(one):
        return (after.usage, after.charge_nusd, after.cost_nusd) == (before.usage, *then)
    expected = amounts_of(after, pinned_or_none(after.price), pinned_or_none(after.cost))
    stands = {field_named(name) for name in EntryDetails.of(one.details).stands or ()}
    kept = [old if name in stands or new is None else new for name, old, new in zip(MONEY, then, expected, strict=True)]
    return kept == [after.charge_nusd, after.cost_nusd]


def amounts_of(totals: ExchangeTotals, price: Price | None, cost: Price | None) -> tuple[Nusd | None, Nusd | None]:
    """The charge and the cost of these counts at these lists. None: no list, or none with a price for them."""
    charges = [(one.price, one.usage) for one in totals.other_models]
    costs = [(one.cost, one.usage) for one in totals.other_models]
    return (
        None if price is None else _at(price, totals, totals.bills, charges),
        None if cost is None else _at(cost, totals, incurred(totals.source, totals.bills), costs),
    )


def _read_in(one: LedgerEntry, now: ExchangeTotals) -> ReadAgain:
    """The usage that an adjustment has read again, from its differences."""
    before, change = structs.astuple(now.usage), structs.astuple(usage_of(one))
    after = [old if new is None else (old or 0) + new for old, new in zip(before, change, strict=True)]
    details = EntryDetails.of(one.details)
    used = other_models(details.other_models)
    return ReadAgain(Usage(*after), _served_as(_said(details.read_again)), tuple(used))


def _served_as(words: Mapping[str, Any]) -> ServedAs:
    return service_of(*(words.get(name) for name in ServedAs.__struct_fields__))


def _said(detail: object) -> Mapping[str, Any]:
    """The members of an object that are not null."""
    return {name: said for name, said in detail.items() if said is not None} if isinstance(detail, Mapping) else {}


def _total_in(totals: ExchangeTotals, name: str) -> int | str | None:
    return stored_total(name, getattr(totals.usage if name in COUNTS else totals, name))


def _adjustment(
    now: ExchangeTotals, usage: Usage, charge_nusd: Nusd | None, cost_nusd: Nusd | None, details: EntryDetails
) -> LedgerEntry | None:
    """The entry with the differences between `now` and the new totals; None if there are none."""
    if (usage, charge_nusd, cost_nusd) == (now.usage, now.charge_nusd, now.cost_nusd):
        return None
    by_hand = usage != now.usage and details.read_again is None
    return adjustment(now, usage, charge_nusd, cost_nusd, details, CORRECTED if by_hand else None)


def adjustment(
    now: ExchangeTotals,
    usage: Usage,
    charge_nusd: Nusd | None,
    cost_nusd: Nusd | None,
    details: EntryDetails,
    source: str | None,
) -> LedgerEntry:
    """The entry with the differences between `now` and the new totals. `source`: of the counts, if it changes."""
    terminal, seq = now.terminal, now.next_seq
    details.adjusts = terminal.entry_id
    counts = {name: difference(getattr(now.usage, name), getattr(usage, name)) for name in TOKENS}
    sourced = {} if source is None else {"usage_source": source, "estimator": None}
    priced = {} if details.price is None else {"price_version": details.price["version"]}
    units = unit_differences(now.usage, usage)
    # A change from unknown to 0 is one.
    details.units = {name: n for name, n in units.items() if n or getattr(now.usage, name) is None} or None
    return structs.replace(
        terminal,
        entry_id=entry_id(terminal.exchange_id, EntryKind.ADJUSTMENT, seq),
        kind=EntryKind.ADJUSTMENT,
        seq=seq,
        events=0,
        bytes=0,
        first_token_ms=None,
        duration_ms=0.0,
        charge_nusd=difference(now.charge_nusd, charge_nusd),
        cost_nusd=difference(now.cost_nusd, cost_nusd),
        details=details.stored(),
        **counts,
        **sourced,
        **priced,
    )


def _nusd(money: int | None) -> Nusd | None:
    return None if money is None else Nusd(money)


def _latest_detail(ordered: Sequence[LedgerEntry], field: Any, kind: type[_T]) -> _T | None:
    """This detail of the last entry that has one of this type."""
    name = detail_name(field)
    return next((detail for one in reversed(ordered) if isinstance(detail := one.details.get(name), kind)), None)


def _priced(
    text: Mapping[str, Any] | None,
    after: ExchangeTotals,
    bills: BillableParts,
    otherwise_nusd: Nusd | None,
    others: Sequence[tuple[Price | None, Usage]],
) -> Nusd | None:
    """nUSD of the totals `after` a correction, at the pinned price `text`; `otherwise_nusd` if there is none. Raises
    CorrectionError if the price does not apply to the new prompt length, or lacks a price for the used units."""
    if text is None:
        return otherwise_nusd
    price = pinned(text)
    above = price.tiers[0].above_prompt_tokens if price.tiers else 0
    if above and (after.usage.prompt_tokens or 0) <= above:
        raise CorrectionError(f"the pinned price applies above {above} prompt tokens: set charge_usd and cost_usd too")
    money = _at(price, after, bills, others)
    if money is None:
        raise CorrectionError("the pinned price list has no price for these counts: set charge_usd and cost_usd too")
    return money


PARTS = (
    *((unit.count, BY_PRICE[unit.of].count) for unit in BILLED_UNITS if unit.of),
    *((BY_PRICE[unit.less].count, unit.count) for unit in BILLED_UNITS if unit.less),
    *((unit.unbilled, unit.count) for unit in BILLED_UNITS if unit.unbilled),
    ("timed_audio_tokens", "audio_prompt_tokens"),
)
"""each part among the counts, and what contains it"""


def _corrected_usage(usage: Usage, request: CorrectionRequest) -> Usage:
    counts = {name: value for name, value in request.changes.items() if name in COUNTS}
    after = structs.replace(usage, **counts)
    parts = (after.prompt_tokens, after.completion_tokens)
    if counts.keys() & {"prompt_tokens", "completion_tokens"} and parts[0] is not None and parts[1] is not None:
        after = structs.replace(after, total_tokens=parts[0] + parts[1])
    for part, whole in PARTS:  # inconsistent counts of the provider may stay
        count, of = getattr(after, part), getattr(after, whole) or 0
        if (part in counts or whole in counts) and count is not None and count > of:
            raise CorrectionError(f"{part} ({count}) is part of {whole} ({of}) and cannot be higher")
    return after


HIGHEST: Mapping[str, int] = {
    **dict.fromkeys(COUNTS, TOKENS_MAX),
    **dict.fromkeys(UNIT_COUNTS, UNITS_MAX),
    **dict.fromkeys(MONEY, AMOUNT_NUSD_MAX),
}
"""the highest total that an operator can set: of counts, and of amounts in nUSD"""


def _check(request: CorrectionRequest, why: str) -> None:
    if not why.strip() or len(why) > REASON_CHARS_MAX or not why.isprintable():
        raise CorrectionError(f"reason: must be 1 to {REASON_CHARS_MAX} printable characters")
    if not request.changes:
        raise CorrectionError("nothing is set: give at least one number")
    for name, value in request.changes.items():
        high = HIGHEST[name]
        if not 0 <= value <= high:
            raise CorrectionError(f"{stored_name(name)}: must be from 0 to {stored_total(name, high)}")
