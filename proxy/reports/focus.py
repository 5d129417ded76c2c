"""The rows of FOCUS 1.2 (FinOps Open Cost and Usage Specification): one for each billed unit of an exchange.

Invariants:
- The BilledCost of an entry's rows adds up to the entry's exact charge, so a file adds up to the ledger.
- PricingQuantity × ListUnitPrice is ListCost, and × ContractedUnitPrice is ContractedCost, to 15 places of a USD.

A charge is rounded once, for all units of an exchange. ListCost and ContractedCost are not rounded; BilledCost and
EffectiveCost are whole nUSD: each row has what the rounded sum grows by, so no row is a whole nUSD off its product.

A row has the price that is pinned in the entry: ListUnitPrice without the multipliers of price rules,
ContractedUnitPrice with them. Units that were used and are not billed have PricingQuantity 0; unpriced ones have price
0. If the units do not add up to the charge (a cost that the provider stated, an entry without prices), a row
`exchange` has all of it. A correction or a top-up is one row of category Adjustment or Credit, without a SKU.

Included are all mandatory and recommended columns that apply, and the conditional ones whose conditions hold. The
organization is the billing account, its keys are sub accounts. SkuPriceDetails and the columns `x_…` hold the details.
The billing period is the month whose statement has the entry; the class is Correction if the exchange began in an
earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import asdict

from proxy.billing.details import EntryDetails
from proxy.billing.dimensions import NAMED
from proxy.billing.entries import EntryKind, LedgerEntry, usage_of
from proxy.billing.money import (
    PARTS_PER_NUSD,
    PER_HOUR_OF_MS,
    PER_MILLION,
    PER_THOUSAND,
    nusd_rounded_half_up,
    usd_rounded_half_up,
)
from proxy.billing.period import month_of
from proxy.billing.pricing.prices import SIDES, before_rules, by_rule, pinned
from proxy.billing.record import BillableParts, Rates
from proxy.billing.settlement import other_models
from proxy.billing.units import BILLED_UNITS, Unit, numbers, rate_of
from proxy.metering.usage import Usage
from proxy.reports.export import Column, ColumnType, ExportedEntry, usd

CURRENCY, ISSUER, UNPRICED = "USD", "Tokenweir", "unpriced"


class Meter(NamedTuple):
    """How FOCUS names and measures a billed unit."""

    unit: str
    """the unit's price in the configuration; `exchange`: a whole charge"""
    name: str
    consumed_unit: str
    pricing_unit: str
    scale: int
    """value of one unit at a price of 1 nUSD, in PARTS_PER_NUSD"""

    def consumed(self, number: int) -> Decimal:
        """The number in `consumed_unit`."""
        return Decimal(number).scaleb(-3) if self.scale == PER_HOUR_OF_MS else Decimal(number)

    def priced(self, number: int) -> Decimal:
        """The number in `pricing_unit`: exact, but for hours, which have 15 places."""
        return Decimal(number * self.scale * 10**15 // PARTS_PER_NUSD).scaleb(-15)


# Scale → what a price is for, before the noun.
_QUANTITIES = {PER_MILLION: "1000000 ", PER_THOUSAND: "1000 ", PARTS_PER_NUSD: ""}


def _meter(unit: Unit) -> Meter:
    if unit.scale == PER_HOUR_OF_MS:
        return Meter(unit.price, "Audio", "Seconds", "Hours", unit.scale)
    name = _title(f"{unit.price} tokens" if unit.is_token else unit.count or "requests")
    noun = "Tokens" if unit.is_token else name
    return Meter(unit.price, name, noun, f"{_QUANTITIES[unit.scale]}{noun}", unit.scale)


def _title(words: str) -> str:
    return " ".join(word[:1].upper() + word[1:] for word in words.replace("_", " ").split())


_METERS = {unit.price: _meter(unit) for unit in BILLED_UNITS}
_EXCHANGE = Meter("exchange", "Exchanges", "Requests", "Requests", PARTS_PER_NUSD)


class UsedUnit(NamedTuple):
    """A unit that a model used, and its price. Prices: nUSD."""

    meter: Meter
    model: str
    number: int
    billed: int
    """the number, or 0"""
    list_rate: int
    rate: int
    is_unpriced: bool
    terms: Mapping[str, Any]
    """the facts that select the list price, such as the prompt's length"""

    @property
    def sku(self) -> str:
        return f"{self.model}/{self.meter.unit}"

    @property
    def price_id(self) -> str:
        """`tera-large/input@config-0badcafe`, and the terms if there are any."""
        version, *others = self.terms.items() or [("", UNPRICED)]
        return "".join([f"{self.sku}@{version[1]}", *(f"/{name[2:]}={value}" for name, value in others)])

    @property
    def parts(self) -> int:
        """The billed amount, in PARTS_PER_NUSD."""
        return self.billed * self.rate * self.meter.scale


class FocusRow(NamedTuple):
    """One row. `used`: None for corrections and top-ups."""

    of_entry: tuple[Any, ...]
    """the values that all rows of its entry have, in the order of `_OF_ENTRY`"""
    billed_nusd: int
    used: UsedUnit | None = None


def focus_rows(sources: Iterable[ExportedEntry]) -> Iterator[FocusRow]:
    """The rows of these entries, in their order. Failed attempts have none: the terminal entry has the charge."""
    for source in sources:
        entry = source.entry
        if entry.kind == EntryKind.ATTEMPT:
            continue
        of_entry = tuple(column.of(source) for column in _OF_ENTRY)
        if entry.kind != EntryKind.USAGE:
            yield FocusRow(of_entry, entry.charge_nusd or 0)
            continue
        parts = booked = 0
        for used in _used_units(entry):
            parts += used.parts
            billed_nusd = nusd_rounded_half_up(parts) - booked
            booked += billed_nusd
            yield FocusRow(of_entry, billed_nusd, used)


def _used_units(entry: LedgerEntry) -> list[UsedUnit]:
    """The units whose rounded sum is the charge of a terminal entry."""
    charge_nusd = entry.charge_nusd or 0
    try:
        units = list(_units_of_models(entry))
    except (ValueError, TypeError):  # unreadable details
        units = []
    if units and nusd_rounded_half_up(sum(used.parts for used in units)) == charge_nusd:
        return units
    terms = {} if entry.price_version is None else {"x_version": entry.price_version}
    is_unpriced = entry.charge_nusd is None
    whole = UsedUnit(_EXCHANGE, entry.model, 1, 1, charge_nusd, charge_nusd, is_unpriced, terms)
    return [*(used._replace(billed=0) for used in units), whole]


def _units_of_models(entry: LedgerEntry) -> Iterator[UsedUnit]:
    """The units of the exchange's own model, and of other models that it used. Raises ValueError, TypeError."""
    details = EntryDetails.of(entry.details)
    bills, missing = BillableParts(details.billed or ""), details.unpriced_units or ()
    is_charged = entry.charge_nusd is not None
    yield from _units_of(entry.model, usage_of(entry), details.price if is_charged else None, bills, missing)
    for other, listed in zip(other_models(details.other_models), details.other_models or (), strict=True):
        price = listed.get("price") if is_charged else None
        yield from _units_of(other.model, other.usage, price, bills, ())


class PinnedList(NamedTuple):
    """The price list in an entry. Prices: nUSD by unit."""

    rates: Rates
    charged: Mapping[str, int]
    listed: Mapping[str, int]
    """before price rules"""
    terms: Mapping[str, Any]


_NO_LIST = PinnedList(Rates(0, 0, 0), {}, {}, {})


@lru_cache(maxsize=4_096)
def _pinned(price: bytes) -> PinnedList:
    """`price`: the detail as JSON. Raises ValueError."""
    text = msgspec.json.decode(price)
    tiers = pinned(text).tiers
    if not tiers:
        return _NO_LIST
    by = msgspec.convert(text.get("multipliers") or {}, dict[str, str])
    charged = {unit.price: rate for unit in BILLED_UNITS if (rate := rate_of(unit, tiers[0])) is not None}
    listed = {name: before_rules(rate, name, by) for name, rate in charged.items()}
    return PinnedList(tiers[0], charged, listed, _terms(text, by))


def _terms(text: Mapping[str, Any], by: Mapping[str, str]) -> dict[str, Any]:
    """The facts that select the list price: the version of the list, the tier of the prompt's length, and how the
    answer was served. Custom names begin with `x_`, as FOCUS requires."""
    terms = {f"x_{name}": text[name] for name in ("version", "above_prompt_tokens", "service_tier") if name in text}
    return terms | {f"x_{reason}": factor for reason, factor in by.items() if not by_rule(reason)}


def _units_of(
    model: str, usage: Usage, price: object, bills: BillableParts, missing: Collection[str]
) -> Iterator[UsedUnit]:
    """`price`: as pinned in the entry; None: there is none. `missing`: the counts that the list has no price for."""
    list_ = _NO_LIST if price is None else _pinned(msgspec.json.encode(price, order="sorted"))
    used = numbers(usage, list_.rates)
    if "request" in list_.charged:
        used["request"] = 1
    for unit in BILLED_UNITS:
        if not (number := used.get(unit.price)):
            continue
        yield UsedUnit(
            _METERS[unit.price],
            model,
            number,
            billed=number if unit.side in SIDES[bills] else 0,
            list_rate=list_.listed.get(unit.price, 0),
            rate=list_.charged.get(unit.price, 0),
            is_unpriced=unit.price not in list_.charged or unit.count in missing,
            terms=list_.terms,
        )


# FOCUS: a prefix for the tags that the provider defines.
_PREFIX = "tokenweir:"


def booked_at(source: ExportedEntry) -> float:
    """The start of the exchange for usage, the settlement for corrections and top-ups; Unix seconds."""
    return (
        source.settled_at if source.entry.kind in (EntryKind.ADJUSTMENT, EntryKind.CREDIT) else source.entry.started_at
    )


def _category(source: ExportedEntry) -> str:
    named: dict[str, str] = {EntryKind.ADJUSTMENT: "Adjustment", EntryKind.CREDIT: "Credit"}
    return named.get(source.entry.kind, "Usage")


def _class(source: ExportedEntry) -> str | None:
    late = month_of(source.entry.started_at) != source.month
    return "Correction" if late and source.entry.kind != EntryKind.CREDIT else None


def _description(source: ExportedEntry) -> str:
    entry, details = source.entry, EntryDetails.of(source.entry.details)
    if _category(source) != "Usage":
        return str(details.why or entry.kind)
    billed = details.billed or BillableParts.EVERYTHING
    return f"{entry.model}: {entry.outcome}, usage {entry.usage_source}, billed: {billed}"


def _ends_at(source: ExportedEntry) -> float:
    """The exclusive end, at least one second after the start."""
    begun = int(source.entry.started_at)
    return max(begun + 1.0, float(-(-(source.entry.started_at + source.entry.duration_ms / 1000) // 1)))


def _tags(source: ExportedEntry) -> dict[str, str | bool] | None:
    """The tags of the key, `team:a` → {"team": "a"} (a tag without a value is true), and the dimensions of the request.
    A key's tag comes before a request's of the same name: the operator has set it."""
    has = {f"{_PREFIX}{name}": value for name in NAMED if (value := source.dimensions.get(name)) is not None}
    parted = (tag.partition(":") for tag in (() if source.owner is None else source.owner.tags))
    of_key = {name: value if colon else True for name, colon, value in parted}
    return {**source.tags, **has, **of_key} or None


def _owner(name: str, default: Callable[[ExportedEntry], Any]) -> Callable[[ExportedEntry], Any]:
    def read(source: ExportedEntry) -> Any:
        found = None if source.owner is None else getattr(source.owner, name)
        return default(source) if found is None else found

    return read


def _is_key(source: ExportedEntry) -> bool:
    owner = source.owner
    return owner is None or owner.scope_id not in (owner.project_id, owner.organization_id)


def _sub_account(read: Callable[[ExportedEntry], Any]) -> Callable[[ExportedEntry], Any]:
    """The key; null for top-ups of an account, which have no key."""
    return lambda source: read(source) if _is_key(source) else None


def _corrected_counts(source: ExportedEntry) -> dict[str, int] | None:
    """The differences that a correction makes to the counts. Null for other entries, and for unreadable counts."""
    if source.entry.kind != EntryKind.ADJUSTMENT:
        return None
    try:
        return {name: count for name, count in asdict(usage_of(source.entry)).items() if count} or None
    except (ValueError, TypeError):
        return None


def _text(name: str, read: Callable[[ExportedEntry], Any]) -> Column:
    return Column(name, ColumnType.TEXT, read)


_OF_ENTRY: tuple[Column, ...] = (
    _text("BillingAccountId", _owner("organization_id", lambda source: source.entry.key_id)),
    _text("BillingAccountName", _owner("organization", lambda source: source.entry.key_alias)),
    _text("BillingAccountType", lambda _: "Organization"),
    _text("BillingCurrency", lambda _: CURRENCY),
    Column("BillingPeriodEnd", ColumnType.SECOND, lambda source: source.month.until),
    Column("BillingPeriodStart", ColumnType.SECOND, lambda source: source.month.since),
    _text("ChargeCategory", _category),
    _text("ChargeClass", _class),
    _text("ChargeDescription", _description),
    _text("ChargeFrequency", lambda source: "One-Time" if source.entry.kind == EntryKind.CREDIT else "Usage-Based"),
    Column("ChargePeriodEnd", ColumnType.SECOND, _ends_at),
    Column("ChargePeriodStart", ColumnType.SECOND, lambda source: float(int(source.entry.started_at))),
    _text("InvoiceId", lambda _: None),
    _text("InvoiceIssuerName", lambda _: ISSUER),
    _text("ProviderName", lambda _: ISSUER),
    _text("PublisherName", lambda source: source.entry.provider or ISSUER),
    _text("ServiceCategory", lambda _: "AI and Machine Learning"),
    _text("ServiceName", lambda source: source.entry.model or "Credit"),
    _text("ServiceSubcategory", lambda _: "Generative AI"),
    _text("SubAccountId", _sub_account(lambda source: source.entry.key_id)),
    _text("SubAccountName", _sub_account(lambda source: source.entry.key_alias)),
    _text("SubAccountType", _sub_account(lambda _: "API key")),
    Column("Tags", ColumnType.JSON, _tags),
    Column("x_CorrectedCounts", ColumnType.JSON, _corrected_counts),
    _text("x_EntryId", lambda source: source.entry.entry_id),
    _text("x_ExchangeId", lambda source: source.entry.exchange_id),
    _text("x_Outcome", lambda source: source.entry.outcome),
    _text("x_ProjectId", _owner("project_id", lambda _: None)),
    _text("x_UpstreamModel", lambda source: source.entry.upstream_model),
    _text("x_UsageSource", lambda source: source.entry.usage_source),
)


def _of_unit(name: str, kind: ColumnType, read: Callable[[UsedUnit], Any]) -> Column:
    """A column that is null in rows of corrections and top-ups."""
    return Column(name, kind, lambda row: None if row.used is None else read(row.used))


def _cost(name: str, rate: Callable[[UsedUnit], int]) -> Column:
    """Quantity × price in USD, not rounded to whole nUSD."""

    def read(row: FocusRow) -> Decimal:
        used = row.used
        if used is None:
            return usd(row.billed_nusd)
        return usd_rounded_half_up(used.billed * rate(used) * used.meter.scale)

    return Column(name, ColumnType.DECIMAL, read)


_OF_ROW: tuple[Column, ...] = (
    Column("BilledCost", ColumnType.MONEY, lambda row: row.billed_nusd),
    _of_unit("ConsumedQuantity", ColumnType.DECIMAL, lambda used: used.meter.consumed(used.number)),
    _of_unit("ConsumedUnit", ColumnType.TEXT, lambda used: used.meter.consumed_unit),
    _cost("ContractedCost", lambda used: used.rate),
    _of_unit("ContractedUnitPrice", ColumnType.MONEY, lambda used: used.rate),
    Column("EffectiveCost", ColumnType.MONEY, lambda row: row.billed_nusd),
    _cost("ListCost", lambda used: used.list_rate),
    _of_unit("ListUnitPrice", ColumnType.MONEY, lambda used: used.list_rate),
    _of_unit("PricingCategory", ColumnType.TEXT, lambda _: "Standard"),
    _of_unit("PricingQuantity", ColumnType.DECIMAL, lambda used: used.meter.priced(used.billed)),
    _of_unit("PricingUnit", ColumnType.TEXT, lambda used: used.meter.pricing_unit),
    _of_unit("SkuId", ColumnType.TEXT, lambda used: used.sku),
    _of_unit("SkuMeter", ColumnType.TEXT, lambda used: used.meter.name),
    _of_unit("SkuPriceDetails", ColumnType.JSON, lambda used: used.terms or None),
    _of_unit("SkuPriceId", ColumnType.TEXT, lambda used: used.price_id),
    _of_unit("x_Unit", ColumnType.TEXT, lambda used: used.meter.unit),
    _of_unit("x_Unpriced", ColumnType.FLAG, lambda used: used.is_unpriced),
)


def _value_at(index: int) -> Callable[[FocusRow], Any]:
    return lambda row: row.of_entry[index]


_COLUMNS = [*_OF_ROW, *(Column(one.name, one.kind, _value_at(index)) for index, one in enumerate(_OF_ENTRY))]
FOCUS: tuple[Column, ...] = tuple(sorted(_COLUMNS, key=lambda column: (column.name.startswith("x_"), column.name)))
"""the columns of a FocusRow: FOCUS's own by name, then the custom ones"""
