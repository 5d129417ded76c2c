"""Adjusts one exchange; uses the same functions as `tokenweir adjust`.

Invariants:
- A preview (`dry_run`) writes nothing, not even to the audit log.
- An amount that an operator has set is calculated anew only if the request says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import Engine

from proxy.billing.adjustment import stored_total
from proxy.billing.correction import (
    ADJUSTED_COUNTS,
    HIGHEST,
    REASON_CHARS_MAX,
    CorrectionError,
    CorrectionRequest,
    ExchangeTotals,
    amounts_text,
    changed_totals,
)
from proxy.billing.entries import LedgerEntry, stored_name
from proxy.billing.money import Nusd, nusd_from_usd, usd_text
from proxy.console.api.audited_operations import AuditedOperations, checked
from proxy.console.api.endpoints import ApiCall, ApiReply, Endpoint, operation
from proxy.http.errors import ApiError
from proxy.ledger.settling.corrections import Corrections
from proxy.ledger.settling.store import LedgerStore
from proxy.settings.operators import OperatorRole

UsdText = Annotated[
    str,
    Meta(
        pattern=r"^[0-9]{1,7}(\.[0-9]{1,9})?$",
        description='a decimal string of USD from 0 to 1000000 with up to 9 decimals, such as "0.25"',
    ),
]


class _AdjustBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(min_length=1, max_length=REASON_CHARS_MAX)]
    """recorded in the entry; the owner of the key sees it"""
    charge_usd: UsdText | UnsetType = UNSET
    """the new charge to the owner of the key"""
    cost_usd: UsdText | UnsetType = UNSET
    """the new cost at the provider"""
    dry_run: bool = False
    """only show the changes"""
    replace: bool = False
    """calculate amounts anew that an operator has set"""


AdjustBody = msgspec.defstruct(
    "AdjustBody",
    [
        (name, Annotated[int, Meta(ge=0, le=HIGHEST[name])] | UnsetType, msgspec.field(default=UNSET))
        for name in ADJUSTED_COUNTS
    ],
    bases=(_AdjustBody,), frozen=True, kw_only=True, forbid_unknown_fields=True,
)  # fmt: skip
AdjustBody.__doc__ = """The new totals of an exchange; absent: unchanged. After a new count, the charge and the cost are
calculated anew at the prices of the exchange, unless they are given."""


class Changed(msgspec.Struct, frozen=True):
    """A total before and after. Money: decimal strings of USD; null: unknown."""

    old: int | str | None
    new: int | str | None


class Adjusted(msgspec.Struct, frozen=True, kw_only=True):
    """An adjustment of an exchange."""

    object: Literal["adjustment"] = "adjustment"
    id: str
    """of the exchange"""
    entry_id: str | None
    """null: `dry_run`, nothing was written"""
    changed: Mapping[str, Changed]
    """`charge_usd`, `cost_usd` and counts, by name"""
    replaced: Mapping[str, str | None]
    """the amounts that an operator had set, and that are calculated anew"""


@dataclass(frozen=True, slots=True)
class AdjustmentsApi:
    """The route `/v1/exchanges/{exchange_id}/adjust`."""

    engine: Engine
    ledger: LedgerStore
    operations: AuditedOperations

    def endpoints(self) -> Iterable[Endpoint]:
        """The endpoint of this API."""
        yield operation(
            "/v1/exchanges/{exchange_id}/adjust", "Correct the counts or the amounts of an exchange.", self.adjust,
            AdjustBody, Adjusted, role=OperatorRole.ADMIN,
        )  # fmt: skip

    async def adjust(self, call: ApiCall) -> ApiReply:
        """Adjust an exchange, or show what that would change. Raises ApiError, OSError."""
        request, body = _requested(call.body), call.body
        work = Corrections(self.engine, self.ledger, call.session.actor)

        def made() -> tuple[LedgerEntry, ExchangeTotals]:
            line = work.adjust(call.named, request, body.reason, dry_run=body.dry_run)
            if line is None:
                raise CorrectionError("The exchange already has these values; nothing was written")
            return line, work.before(line)

        replaced = await self.operations.call_store(lambda: work.replaced_by_hand(call.named, request))
        if replaced and not (body.replace or body.dry_run):
            raise _set_by_operator(replaced)
        if body.dry_run:
            line, before = await self.operations.call_store(made)
        else:
            line, before = await self.operations.run(call, "adjust", call.named, body, lambda _act: made())
        return ApiReply(
            Adjusted(
                id=call.named,
                entry_id=None if body.dry_run else line.entry_id,
                changed={
                    stored_name(name): Changed(stored_total(name, old), stored_total(name, new))
                    for name, (old, new) in changed_totals(before, line).items()
                },
                replaced={stored_name(name): _usd(nusd) for name, nusd in replaced.items()},
            )
        )


def _requested(body: Any) -> CorrectionRequest:
    """The requested totals. Raises ApiError."""
    counts = {name: value for name in ADJUSTED_COUNTS if (value := getattr(body, name)) is not UNSET}
    amounts = {
        f"{name}_nusd": checked(f"{name}_usd", nusd_from_usd, text)
        for name, text in (("charge", body.charge_usd), ("cost", body.cost_usd))
        if text is not UNSET
    }
    return CorrectionRequest(**counts, **amounts)


def _set_by_operator(replaced: Mapping[str, Nusd | None]) -> ApiError:
    message = (
        f"'replace': an operator has set {amounts_text(replaced)}; send true to calculate it anew from the tokens."
    )
    return ApiError(409, message, param="replace", code="amount_set_by_operator")


def _usd(nusd: Nusd | None) -> str | None:
    return None if nusd is None else usd_text(nusd)
