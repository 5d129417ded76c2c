"""Applies other prices to past requests; uses the same functions as `tokenweir rerate`.

Invariants:
- A preview writes nothing.
- The prices are applied only if the difference is still the one that the operator has seen.
- Each request is corrected once: a repeated or interrupted call corrects what is left.
- A call takes a thread for a limited time.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import Engine

from proxy.billing.money import Nusd, usd_text
from proxy.console.api.audited_operations import AuditedOperations, checked
from proxy.console.api.endpoints import ApiCall, ApiReply, Endpoint, operation
from proxy.console.api.reading import invalid
from proxy.console.api.schemas.exchanges import Name
from proxy.console.api.schemas.keys import Text
from proxy.foundation.times import iso_utc, since_from
from proxy.http.errors import ApiError
from proxy.ledger.settling.corrections import (
    Corrections,
    Prices,
    RerateResult,
    SimulatedSum,
    Simulation,
    charged_at,
)
from proxy.ledger.settling.store import LedgerStore
from proxy.reports.repricing import CustomerSum, by_customer
from proxy.settings import SettingsError
from proxy.settings.fields import FieldPath
from proxy.settings.operators import OperatorRole
from proxy.settings.prices import PRICE
from proxy.storage.executor import BoundedExecutor

# Some 40,000 requests: reading takes 0.25 ms for each, and writing a correction 0.75 ms.
PREVIEW_S_MAX = 10.0
APPLY_S_MAX = 30.0
MODELS_MAX = 50

RERATE = "rerate"
"""the action in the audit log"""


class _PricesBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    models: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=MODELS_MAX)]
    """names as clients request them"""
    price: dict[str, Any] | None = None
    """the new price, as in the settings: `{"input": 0.15, "output": 0.6}`, USD per million tokens; null: the prices of
    the configuration, for charges and costs"""


class PreviewBody(_PricesBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Other prices for past requests."""

    since: Text
    """requests that began at or after: a date, a time, or a duration before now (`7d`)"""
    until: Text | UnsetType = UNSET
    """requests that began before; default: now"""


class RerateBody(_PricesBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Other prices for past requests, as a preview has shown them."""

    since: Text
    """as in the answer of the preview"""
    until: Text
    """as in the answer of the preview"""
    difference_usd: Text
    """the difference of the preview's total"""


class PricedSums(msgspec.Struct, frozen=True, kw_only=True):
    """Sums at the present prices and at the new ones. Money: decimal strings of USD; unknown amounts count as 0."""

    requests: int
    charge_usd: str
    new_charge_usd: str
    difference_usd: str
    """new charge - charge"""
    cost_usd: str
    new_cost_usd: str


class CustomerSums(PricedSums, frozen=True, kw_only=True):
    """The sums of one organization."""

    organization_id: str | None
    """null: the organization is unknown, and `name` is that of the key"""
    name: str


class ReratePreview(msgspec.Struct, frozen=True, kw_only=True):
    """What other prices come to. Corrections are booked when they are made: on statements of the present month."""

    object: Literal["rerate_preview"] = "rerate_preview"
    since: str
    until: str
    total: PricedSums
    customers: list[CustomerSums]
    """those with the largest difference first"""
    manually_corrected: int
    """requests whose amounts an operator has set; these amounts stay"""
    without_price: int
    """requests that the new prices have no price for: their charge stays, or is that of another tier"""
    unreadable: int
    """requests with malformed entries; they stay, and no sum includes them"""


class Rerated(msgspec.Struct, frozen=True, kw_only=True):
    """Corrections that were made. Money: decimal strings of USD."""

    object: Literal["rerate"] = "rerate"
    is_complete: bool
    """false: the time was not enough; preview again for the rest"""
    requests: int
    """requests examined"""
    adjusted: int
    difference_usd: str
    """the sum of the corrections of charges"""
    cost_difference_usd: str
    manually_corrected: int
    unreadable: int


class _Stopped(Exception):  # noqa: N818  a limit, no fault
    """The time is over."""


@dataclass(frozen=True, slots=True)
class _Job:
    models: tuple[str, ...]
    prices: Prices
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class RerateApi:
    """The routes `/v1/rerate/preview` and `/v1/rerate`."""

    engine: Engine
    ledger: LedgerStore
    operations: AuditedOperations
    threads: BoundedExecutor
    is_configured: Callable[[str], bool]
    """model name → whether the configuration has a model or pattern for it"""
    configured_prices: Callable[[], Prices]
    unix_time: Callable[[], float]

    def endpoints(self) -> Iterable[Endpoint]:
        """The endpoints of this API."""
        yield operation(
            "/v1/rerate/preview", "What past requests come to at other prices, by customer; writes nothing.",
            self.preview, PreviewBody, ReratePreview, OperatorRole.READ,
        )  # fmt: skip
        yield operation(
            "/v1/rerate", "Correct past requests to other prices, by adjustments.", self.apply, RerateBody, Rerated,
            OperatorRole.ADMIN,
        )  # fmt: skip

    async def preview(self, call: ApiCall) -> ApiReply:
        """The sums at the present and the new prices. Raises ApiError, OSError."""
        job = self._job(call.body)
        simulation, customers = await self._limited(job, self._simulated)
        return ApiReply(
            ReratePreview(
                since=iso_utc(job.since),
                until=iso_utc(job.until),
                total=PricedSums(**_sums(simulation.total)),
                customers=[
                    CustomerSums(organization_id=one.organization_id, name=one.name, **_sums(one.sums))
                    for one in customers
                ],
                manually_corrected=simulation.by_hand,
                without_price=simulation.total.without_price,
                unreadable=simulation.unreadable,
            )
        )

    async def apply(self, call: ApiCall) -> ApiReply:
        """Write the adjustments. Raises ApiError, OSError."""
        job, body = self._job(call.body), call.body
        corrections = Corrections(self.engine, self.ledger, call.session.actor)
        expected = await self._limited(job, partial(self._difference, corrections))
        if usd_text(expected) != body.difference_usd:
            message = f"The difference is {usd_text(expected)} USD by now, not {body.difference_usd}: preview again."
            raise ApiError(409, f"'difference_usd': {message}", param="difference_usd", code="preview_outdated")

        def work(_act: object) -> tuple[RerateResult, bool]:
            result, check = RerateResult(), _until_over(APPLY_S_MAX)
            try:
                for model in job.models:
                    corrections.rerate(
                        model, job.prices, since=job.since, until=job.until, progress=check, result=result
                    )  # fmt: skip
            except _Stopped:
                return result, False
            return result, True

        result, is_complete = await self.operations.run(call, RERATE, ", ".join(job.models), body, work)
        return ApiReply(
            Rerated(
                is_complete=is_complete,
                requests=result.exchanges,
                adjusted=result.total.adjusted,
                difference_usd=usd_text(result.total.charge_nusd),
                cost_difference_usd=usd_text(result.total.cost_nusd),
                manually_corrected=result.by_hand,
                unreadable=result.unreadable,
            )
        )

    # -- on a thread

    async def _limited(self, job: _Job, work: Callable[[_Job, Callable[[object], None]], Any]) -> Any:
        """The result of `work`. Raises ApiError if it takes longer than PREVIEW_S_MAX."""
        try:
            return await self.threads.run(work, job, _until_over(PREVIEW_S_MAX))
        except _Stopped:
            raise invalid(_too_many(job), "since") from None

    def _simulated(self, job: _Job, check: Callable[[object], None]) -> tuple[Simulation, list[CustomerSum]]:
        corrections, total = Corrections(self.engine, self.ledger), Simulation()
        for model in job.models:
            corrections.simulate(
                job.prices, since=job.since, until=job.until, model=model, progress=check, result=total
            )  # fmt: skip
        return total, by_customer(self.engine, total)

    def _difference(self, corrections: Corrections, job: _Job, check: Callable[[object], None]) -> Nusd:
        result = RerateResult()
        for model in job.models:
            corrections.rerate(
                model, job.prices, since=job.since, until=job.until, dry_run=True, progress=check, result=result
            )  # fmt: skip
        return result.total.charge_nusd

    # -- reading

    def _job(self, body: PreviewBody | RerateBody) -> _Job:
        """Raises ApiError."""
        now = float(int(self.unix_time()))  # an answer repeats it as text
        read = partial(since_from, now=now)
        since = checked("since", read, body.since)
        until = now if body.until is UNSET else checked("until", read, body.until)
        if until <= since:
            raise invalid("'until': must be later than 'since'.", "until")
        models = tuple(dict.fromkeys(body.models))
        if body.price is not None:
            return _Job(models, _given(body.price), since, until)
        for model in models:
            if not self.is_configured(model):
                raise invalid(f"'models': {model!r} is no longer configured: give a 'price'.", "models")
        return _Job(models, self.configured_prices(), since, until)


def _given(price: dict[str, Any]) -> Prices:
    """Raises ApiError."""
    try:
        return charged_at(PRICE.read(price, FieldPath({}, Path(), parts=("price",))))
    except SettingsError as wrong:
        faults = "; ".join(fault.text.removeprefix("price.").removeprefix("price: ") for fault in wrong.faults)
        raise invalid(f"'price': {faults}.", "price") from None


def _until_over(limit_s: float) -> Callable[[object], None]:
    """A function that raises _Stopped when the time is over."""
    end = time.monotonic() + limit_s

    def check(_progress: object) -> None:
        if time.monotonic() >= end:
            raise _Stopped

    return check


def _too_many(job: _Job) -> str:
    command = shlex.join(
        ["tokenweir", "rerate", "--model", job.models[0], "--since", iso_utc(job.since), "--until", iso_utc(job.until)]
    )
    return (
        f"'since': these are more requests than the console reprices in {PREVIEW_S_MAX:g} s: choose a shorter period, "
        f"or run `{command} --dry-run` for each model."
    )


def _sums(sums: SimulatedSum) -> dict[str, Any]:
    return {
        "requests": sums.exchanges,
        "charge_usd": usd_text(sums.charge_nusd),
        "new_charge_usd": usd_text(sums.simulated_charge_nusd),
        "difference_usd": usd_text(Nusd(sums.simulated_charge_nusd - sums.charge_nusd)),
        "cost_usd": usd_text(sums.cost_nusd),
        "new_cost_usd": usd_text(sums.simulated_cost_nusd),
    }
