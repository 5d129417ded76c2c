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

from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import Any, NamedTuple

from msgspec.structs import asdict

from proxy.billing.details import EntryDetails
from proxy.billing.dimensions import NAMED
from proxy.billing.entries import EntryKind, usage_of
from proxy.billing.money import (
    PARTS_PER_NUSD,
    PER_HOUR_OF_MS,
    PER_MILLION,
    PER_THOUSAND,
    usd_rounded_half_up,
)
from proxy.billing.period import month_of
from proxy.billing.record import BillableParts
from proxy.billing.units import BILLED_UNITS, Unit
from proxy.billing.used_units import WHOLE, UsedUnit, charged_units
from proxy.reports.export import Column, ColumnType, ExportedEntry, usd

CURRENCY, ISSUER, UNPRICED = "USD", "Tokenweir", "unpriced"


class Meter(NamedTuple):
    """How FOCUS names and measures a billed unit."""

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
        return Meter("Audio", "Seconds", "Hours", unit.scale)
    name = _title(f"{unit.price} tokens" if unit.is_token else unit.count or "requests")
    noun = "Tokens" if unit.is_token else name
    return Meter(name, noun, f"{_QUANTITIES[unit.scale]}{noun}", unit.scale)


def _title(words: str) -> str:
    return " ".join(word[:1].upper() + word[1:] for word in words.replace("_", " ").split())


_METERS = {unit.price: _meter(unit) for unit in BILLED_UNITS}
_METERS[WHOLE] = Meter("Exchanges", "Requests", "Requests", PARTS_PER_NUSD)


def _sku(used: UsedUnit) -> str:
    return f"{used.model}/{used.price}"


def _price_id(used: UsedUnit) -> str:
    """`tera-large/input@config-0badcafe`, and the terms if there are any."""
    version, *others = used.terms.items() or [("", UNPRICED)]
    return "".join([f"{_sku(used)}@{version[1]}", *(f"/{name[2:]}={value}" for name, value in others)])


def _meter_of(used: UsedUnit) -> Meter:
    return _METERS[used.price]


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
        for used, billed_nusd in charged_units(entry):
            yield FocusRow(of_entry, billed_nusd, used)


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
        return usd_rounded_half_up(used.billed * rate(used) * _meter_of(used).scale)

    return Column(name, ColumnType.DECIMAL, read)


_OF_ROW: tuple[Column, ...] = (
    Column("BilledCost", ColumnType.MONEY, lambda row: row.billed_nusd),
    _of_unit("ConsumedQuantity", ColumnType.DECIMAL, lambda used: _meter_of(used).consumed(used.number)),
    _of_unit("ConsumedUnit", ColumnType.TEXT, lambda used: _meter_of(used).consumed_unit),
    _cost("ContractedCost", lambda used: used.rate),
    _of_unit("ContractedUnitPrice", ColumnType.MONEY, lambda used: used.rate),
    Column("EffectiveCost", ColumnType.MONEY, lambda row: row.billed_nusd),
    _cost("ListCost", lambda used: used.list_rate),
    _of_unit("ListUnitPrice", ColumnType.MONEY, lambda used: used.list_rate),
    _of_unit("PricingCategory", ColumnType.TEXT, lambda _: "Standard"),
    _of_unit("PricingQuantity", ColumnType.DECIMAL, lambda used: _meter_of(used).priced(used.billed)),
    _of_unit("PricingUnit", ColumnType.TEXT, lambda used: _meter_of(used).pricing_unit),
    _of_unit("SkuId", ColumnType.TEXT, _sku),
    _of_unit("SkuMeter", ColumnType.TEXT, lambda used: _meter_of(used).name),
    _of_unit("SkuPriceDetails", ColumnType.JSON, lambda used: used.terms or None),
    _of_unit("SkuPriceId", ColumnType.TEXT, _price_id),
    _of_unit("x_Unit", ColumnType.TEXT, lambda used: used.price),
    _of_unit("x_Unpriced", ColumnType.FLAG, lambda used: used.is_unpriced),
)


def _value_at(index: int) -> Callable[[FocusRow], Any]:
    return lambda row: row.of_entry[index]


_COLUMNS = [*_OF_ROW, *(Column(one.name, one.kind, _value_at(index)) for index, one in enumerate(_OF_ENTRY))]
FOCUS: tuple[Column, ...] = tuple(sorted(_COLUMNS, key=lambda column: (column.name.startswith("x_"), column.name)))
"""the columns of a FocusRow: FOCUS's own by name, then the custom ones"""
