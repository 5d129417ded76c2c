"""The columns of FOCUS 1.2 (FinOps Open Cost and Usage Specification).

Invariant: a row is one entry and its BilledCost is the entry's exact charge, so a file adds up to the ledger.

Included are all mandatory and recommended columns that apply, and the conditional ones whose conditions hold. The
organization is the billing account, its keys are sub accounts. The pricing unit is one request, because a charge is
rounded once for all tokens of a request: unit price × 1 is exactly the cost. SkuPriceDetails and the columns `x_…` hold
the details. Top-ups have the category Credit (below zero), corrections the category Adjustment. The billing period is
the month whose statement has the entry; the class is Correction if the exchange began in an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from proxy.billing.details import EntryDetails
from proxy.billing.entries import EntryKind, LedgerEntry
from proxy.billing.period import month_of
from proxy.billing.record import BillableParts
from proxy.reports.export import Column, ColumnType, ExportedEntry

CURRENCY, ISSUER, UNPRICED = "USD", "Tokenweir", "unpriced"


def is_charge(entry: LedgerEntry) -> bool:
    """False for a failed attempt: the charge is on the terminal entry of its exchange."""
    return entry.kind != EntryKind.ATTEMPT


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


def _of_usage(read: Callable[[ExportedEntry], Any]) -> Callable[[ExportedEntry], Any]:
    """The value for usage; null for entries of another category."""
    return lambda source: read(source) if _category(source) == "Usage" else None


def _charge(source: ExportedEntry) -> int:
    return source.entry.charge_nusd or 0


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


def _tokens(source: ExportedEntry) -> int:
    return source.entry.total_tokens or 0


def _price_details(source: ExportedEntry) -> dict[str, Any] | None:
    """Custom names begin with `x_`, as FOCUS requires; nested values are left out."""
    shown = EntryDetails.of(source.entry.details).price
    if not isinstance(shown, Mapping):
        return None
    return {f"x_{name}": value for name, value in shown.items() if isinstance(value, str | int | float | bool)}


def _tags(source: ExportedEntry) -> dict[str, str | bool] | None:
    """`team:a` → {"team": "a"}; a tag without a value is true."""
    if source.owner is None or not source.owner.tags:
        return None
    parted = (tag.partition(":") for tag in source.owner.tags)
    return {name: value if colon else True for name, colon, value in parted}


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


def _text(name: str, read: Callable[[ExportedEntry], Any]) -> Column:
    return Column(name, ColumnType.TEXT, read)


FOCUS: tuple[Column, ...] = (
    Column("BilledCost", ColumnType.MONEY, _charge),
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
    Column("ConsumedQuantity", ColumnType.DECIMAL, _of_usage(_tokens)),
    _text("ConsumedUnit", _of_usage(lambda _: "Tokens")),
    Column("ContractedCost", ColumnType.MONEY, _charge),
    Column("ContractedUnitPrice", ColumnType.MONEY, _of_usage(_charge)),
    Column("EffectiveCost", ColumnType.MONEY, _charge),
    _text("InvoiceId", lambda _: None),
    _text("InvoiceIssuerName", lambda _: ISSUER),
    Column("ListCost", ColumnType.MONEY, _charge),
    Column("ListUnitPrice", ColumnType.MONEY, _of_usage(_charge)),
    _text("PricingCategory", _of_usage(lambda _: "Standard")),
    Column("PricingQuantity", ColumnType.DECIMAL, _of_usage(lambda _: 1)),
    _text("PricingUnit", _of_usage(lambda _: "Requests")),
    _text("ProviderName", lambda _: ISSUER),
    _text("PublisherName", lambda source: source.entry.provider or ISSUER),
    _text("ServiceCategory", lambda _: "AI and Machine Learning"),
    _text("ServiceName", lambda source: source.entry.model or "Credit"),
    _text("ServiceSubcategory", lambda _: "Generative AI"),
    _text("SkuId", _of_usage(lambda source: source.entry.model)),
    _text("SkuMeter", _of_usage(lambda _: "Requests")),
    Column("SkuPriceDetails", ColumnType.JSON, _of_usage(_price_details)),
    _text("SkuPriceId", _of_usage(lambda source: f"{source.entry.model}@{source.entry.price_version or UNPRICED}")),
    _text("SubAccountId", _sub_account(lambda source: source.entry.key_id)),
    _text("SubAccountName", _sub_account(lambda source: source.entry.key_alias)),
    _text("SubAccountType", _sub_account(lambda _: "API key")),
    Column("Tags", ColumnType.JSON, _tags),
    _text("x_EntryId", lambda source: source.entry.entry_id),
    _text("x_ExchangeId", lambda source: source.entry.exchange_id),
    _text("x_ProjectId", _owner("project_id", lambda _: None)),
    _text("x_UpstreamModel", lambda source: source.entry.upstream_model),
    _text("x_Outcome", lambda source: source.entry.outcome),
    _text("x_UsageSource", lambda source: source.entry.usage_source),
    Column("x_InputTokens", ColumnType.COUNT, lambda source: source.entry.prompt_tokens),
    Column("x_CachedInputTokens", ColumnType.COUNT, lambda source: source.entry.cached_tokens),
    Column("x_OutputTokens", ColumnType.COUNT, lambda source: source.entry.completion_tokens),
    Column("x_ReasoningTokens", ColumnType.COUNT, lambda source: source.entry.reasoning_tokens),
    Column("x_Unpriced", ColumnType.FLAG, lambda source: source.entry.charge_nusd is None),
)
