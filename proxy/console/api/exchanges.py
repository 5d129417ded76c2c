"""Exchanges: a list, and one exchange with the explanation of its charge.

Invariants:
- All values come from the ledger, or are computed from it by the billing code.
- An exchange of another key is answered like one that does not exist.
- Provider cost is shown to the operator only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

from msgspec import UNSET

from proxy.billing.correction import exchange_totals
from proxy.billing.details import STOPPED_BY_OPERATOR, EntryDetails
from proxy.billing.entries import COUNTS, LedgerEntry, usage_of
from proxy.billing.money import PARTS_PER_NUSD, Nusd, usd_text
from proxy.billing.pricing.prices import Addend
from proxy.console.api.dimensions import dimensions_shown, wanted_values
from proxy.console.api.endpoints import ApiCall, ApiReply, Endpoint
from proxy.console.api.hidden_providers import hides_from, require_visible, without_provider
from proxy.console.api.reading import invalid
from proxy.console.api.schemas.exchanges import (
    Adjustment,
    Exchange,
    ExchangeLine,
    ExchangePage,
    ListQuery,
    MoneyShown,
    PriceChanged,
    Timeline,
    Unsettled,
    UsageShown,
)
from proxy.console.api.sessions import ConsoleSession
from proxy.console.ledger_reports import LedgerReports
from proxy.foundation.times import iso_utc
from proxy.http.errors import ApiError
from proxy.ledger.accounts.owners import Owner
from proxy.reports.dimensions import ShownDimension
from proxy.reports.exchange_search import ExchangeFilter, ExchangeOrder
from proxy.reports.exchanges import SettledExchange
from proxy.reports.explain import addends_of, item_json, per_text, price_changes, sum_text
from proxy.reports.table_text import why

# An ended exchange is normally in the ledger after this time; the value of `Retry-After`.
SETTLED_SOON_S = 1

_EXACT = Decimal("1e-15")
# A cursor has whole numbers.
_SCALES = {ExchangeOrder.STARTED: 1e6}
_CURSOR = re.compile(r"([0-9]{1,17})\.([0-9a-f-]{36})", re.ASCII)


class ExchangesApi:
    """The routes `/v1/exchanges`, `/v1/exchanges/{exchange_id}` and its `/receipt`."""

    def __init__(self, reports: LedgerReports, hides_providers: Callable[[], bool]) -> None:
        """`hides_providers`: the setting `hide_providers`."""
        self._reports = reports
        self._hides_providers = hides_providers

    def endpoints(self) -> Iterable[Endpoint]:
        """The endpoints of this API."""
        yield Endpoint(
            method="GET", path="/v1/exchanges", summary="Settled exchanges: search, filters and order.",
            serve=self.listed, query=ListQuery, answers={200: ExchangePage},
        )  # fmt: skip
        yield Endpoint(
            method="GET", path="/v1/exchanges/{exchange_id}/receipt", serve=self.receipt, answers={200: dict[str, Any]},
            summary="The lines of one exchange on closed statements, with the proof.",
        )  # fmt: skip
        yield self.one_endpoint

    @property
    def one_endpoint(self) -> Endpoint:
        """The endpoint that the clients' listener serves, too."""
        return Endpoint(
            method="GET", path="/v1/exchanges/{exchange_id}", summary="One exchange, with its charge explained.",
            serve=self.one, answers={200: Exchange, 202: Unsettled},
        )  # fmt: skip

    async def listed(self, call: ApiCall) -> ApiReply:
        """A page of exchanges; a key gets only its own. Raises ApiError, OSError."""
        query: ListQuery = call.query
        own = None if call.session.key is None else call.session.key.key_id
        key_id = _optional(query.key_id)
        if own is not None and key_id not in (None, own):
            return ApiReply(ExchangePage(listed=[], has_more=False, next_after=None))
        named = [] if query.provider is UNSET else [query.provider]
        require_visible(call.session, "provider", named, hides=self._hides_providers())
        order = ExchangeOrder(query.sort)
        wanted = ExchangeFilter(
            text=_optional(query.q),
            key_id=own or key_id,
            project_id=_optional(query.project_id),
            organization_id=_optional(query.organization_id),
            provider=_optional(query.provider),
            batch_id=_optional(query.batch_id),
            model=_optional(query.model),
            outcome=_optional(query.outcome),
            usage_source=_optional(query.usage_source),
            since=_optional(query.start_time),
            until=_optional(query.end_time),
            dimensions=await self._reports.value_ids(_values(query)),
            order=order,
            after=_cursor(_optional(query.after), order),
        )
        found, last = await self._reports.listed(wanted, query.limit)
        found = [self._visible(one, call.session) for one in found]
        operator = call.session.key is None
        scale = _SCALES.get(order, 1)
        after = None if last is None else f"{round(last[0] * scale)}.{last[1]}"
        shown, owners = await self._shown(found), await self._reports.owners(one.terminal.key_id for one in found)
        lines = [_line(one, shown, owners.get(one.terminal.key_id), operator=operator) for one in found]
        return ApiReply(ExchangePage(listed=lines, has_more=last is not None, next_after=after))

    async def one(self, call: ApiCall) -> ApiReply:
        """One exchange, or 202 while it runs. Raises ApiError 404, OSError."""
        found = await self._reports.one(call.named)
        if found is not None and call.session.may_see(found.terminal.key_id):
            visible = self._visible(found, call.session)
            return ApiReply(_exchange(visible, await self._shown([found]), operator=call.session.key is None))
        if found is None:
            key_id = await self._reports.key_of_unsettled(call.named)
            if key_id is not None and call.session.may_see(key_id):
                return ApiReply(Unsettled(id=call.named), 202, {"Retry-After": str(SETTLED_SOON_S)})
        raise _no_exchange()

    async def receipt(self, call: ApiCall) -> ApiReply:
        """The receipt of an exchange, as `tokenweir receipt` prints it. Raises ApiError, OSError."""
        found = await self._reports.one(call.named)
        if found is None or not call.session.may_see(found.terminal.key_id):
            raise _no_exchange()
        try:
            receipt = await self._reports.receipt(call.named)
        except ValueError as none:  # its month is not closed, or entries of the month are archived
            message = str(none).removeprefix(f"{call.named}: ")
            raise ApiError(409, f"'exchange_id': {message}.", param="exchange_id", code="no_receipt") from None
        return ApiReply(receipt, headers={"Content-Disposition": f'attachment; filename="receipt-{call.named}.json"'})

    def _visible(self, found: SettledExchange, session: ConsoleSession) -> SettledExchange:
        """What the caller may see of it."""
        return without_provider(found) if hides_from(session, hides=self._hides_providers()) else found

    async def _shown(self, found: Iterable[SettledExchange]) -> Mapping[str, ShownDimension]:
        """The values of the dimensions of these exchanges."""
        return await self._reports.shown(value_id for one in found for value_id in one.dimensions.values())


def _no_exchange() -> ApiError:
    return ApiError(404, "No such exchange.", param="exchange_id", code="exchange_not_found")


def _values(query: ListQuery) -> dict[str, list[str]]:
    """The values of the filter by dimension. Raises ApiError."""
    end_users, sessions, runs = ([] if one is UNSET else [one] for one in (query.end_user, query.session, query.run))
    return wanted_values(end_users, sessions, runs, query.tag, "tag")


def _optional(value: Any) -> Any:
    return None if value is UNSET else value


def _cursor(after: str | None, order: ExchangeOrder) -> tuple[float, str] | None:
    if after is None:
        return None
    match = _CURSOR.fullmatch(after)
    if match is None or int(match[1]) > 253_402_214_400_000_000:
        raise invalid("'after': not a cursor of this list; use 'next_after' of the last page.", "after")
    value = int(match[1])
    return (value / scale if (scale := _SCALES.get(order)) else value), match[2]


def _money(entries: Iterable[LedgerEntry], name: str) -> str | None:
    return _usd(_sum(entries, name))


def _sum(entries: Iterable[LedgerEntry], name: str) -> Nusd | None:
    """The sum of the known amounts; None: all are unknown."""
    known = [nusd for entry in entries if (nusd := getattr(entry, name)) is not None]
    return Nusd(sum(known)) if known else None


def _usd(nusd: Nusd | None) -> str | None:
    return None if nusd is None else usd_text(nusd)


def _line(
    found: SettledExchange, shown: Mapping[str, ShownDimension], owner: Owner | None, *, operator: bool
) -> ExchangeLine:
    one, details = found.terminal, EntryDetails.of(found.terminal.details)
    counts = _counts(found)
    charge, cost = (_sum(found.entries, name) for name in ("charge_nusd", "cost_nusd"))
    margin = None if charge is None or cost is None else Nusd(charge - cost)
    return ExchangeLine(
        id=one.exchange_id,
        key_id=one.key_id,
        key_alias=one.key_alias,
        project_id=None if owner is None else owner.project_id,
        project=None if owner is None else owner.project,
        organization_id=None if owner is None else owner.organization_id,
        organization=None if owner is None else owner.organization,
        provider=one.provider or None,
        model=one.model,
        endpoint=one.endpoint,
        streamed=one.streamed,
        started_at=iso_utc(one.started_at),
        duration_ms=one.duration_ms,
        first_token_ms=one.first_token_ms,
        outcome=one.outcome,
        stopped_by_operator=details.failed == STOPPED_BY_OPERATOR,
        usage_source=_source(found),
        batch_id=details.batch_id if isinstance(details.batch_id, str) else None,
        is_batch=details.batch is not None,
        prompt_tokens=counts.get("prompt_tokens"),
        completion_tokens=counts.get("completion_tokens"),
        charge_usd=_usd(charge),
        cost_usd=_usd(cost) if operator else UNSET,
        margin_usd=_usd(margin) if operator else UNSET,
        adjustments=len(found.entries) - 1,
        dimensions=dimensions_shown(found.dimensions, shown),
    )


def _counts(found: SettledExchange) -> dict[str, int]:
    """Counts after all corrections; an unreadable entry counts 0."""
    total: dict[str, int] = {}
    for entry in found.entries:
        for name, count in _known(entry).items():
            total[name] = total.get(name, 0) + count
    return total


def _known(entry: LedgerEntry) -> dict[str, int]:
    try:
        usage = usage_of(entry)
    except (ValueError, TypeError):
        return {}
    return {name: count for name in COUNTS if (count := getattr(usage, name)) is not None}


def _source(found: SettledExchange) -> str:
    try:
        return exchange_totals(found.entries).source
    except (ValueError, TypeError):
        return found.terminal.usage_source


_SHOWN_ELSEWHERE = frozenset(
    {"price", "cost", "billed", "expected_error", "evidence", "usage", "flags", "provider_timings", "held_usd",
     "situation", "attempts", "units", "cost_unknown", "unpriced", "dimensions"}
)  # fmt: skip
# Of the cost, which only operators see.
_OF_COST = frozenset({"cost_unpriced_units", "stated_usd"})


def _exchange(found: SettledExchange, shown: Mapping[str, ShownDimension], *, operator: bool) -> Exchange:
    one, details = found.terminal, EntryDetails.of(found.terminal.details)
    hidden = _SHOWN_ELSEWHERE if operator else _SHOWN_ELSEWHERE | _OF_COST
    return Exchange(
        id=one.exchange_id,
        entry_id=one.entry_id,
        key_id=one.key_id,
        key_alias=one.key_alias,
        provider=one.provider or None,
        model=one.model,
        upstream_model=one.upstream_model or None,
        endpoint=one.endpoint,
        streamed=one.streamed,
        outcome=one.outcome,
        stopped_by_operator=details.failed == STOPPED_BY_OPERATOR,
        situation=details.situation,
        finish_reason=one.finish_reason,
        provider_response_id=one.provider_response_id,
        charge_usd=_money(found.entries, "charge_nusd"),
        cost_usd=_money(found.entries, "cost_nusd") if operator else UNSET,
        explanation=why(one),
        timeline=_timeline(found),
        usage=_usage(found),
        charge=_charge(one),
        cost=_cost(one) if operator else UNSET,
        held_usd=details.reserved_usd,
        price_version=one.price_version,
        dimensions=dimensions_shown(found.dimensions, shown),
        events=one.events,
        bytes=one.bytes,
        attempts=details.attempts or (),
        details={name: value for name, value in one.details.items() if name not in hidden},
        adjustments=[_adjustment(found, at, operator) for at in range(1, len(found.entries))],
    )


def _timeline(found: SettledExchange) -> Timeline:
    one = found.terminal
    first = None if one.first_token_ms is None else iso_utc(one.started_at + one.first_token_ms / 1000)
    return Timeline(
        started_at=iso_utc(one.started_at),
        first_token_at=first,
        ended_at=iso_utc(one.started_at + one.duration_ms / 1000),
        settled_at=iso_utc(found.settled_at[0]),
        first_token_ms=one.first_token_ms,
        duration_ms=one.duration_ms,
        provider_timings=dict(EntryDetails.of(one.details).provider_timings or {}),
    )


def _usage(found: SettledExchange) -> UsageShown:
    one, details = found.terminal, EntryDetails.of(found.terminal.details)
    return UsageShown(
        source=_source(found),
        counts=_counts(found),
        estimator=one.estimator,
        expected_error=details.expected_error,
        evidence=details.evidence,
        reported=details.usage,
        flags=list(details.flags or ()),
    )


def _charge(entry: LedgerEntry) -> MoneyShown:
    details = EntryDetails.of(entry.details)
    return MoneyShown(
        usd=None if entry.charge_nusd is None else usd_text(entry.charge_nusd),
        price=details.price,
        billed=details.billed,
        addends=[{**item_json(part), "amount_usd": _exact(part)} for part in addends_of(entry)],
        formula=sum_text(entry),
    )


def _exact(part: Addend) -> str:
    """USD before rounding, to 15 decimals: enough for the exact price of a token."""
    usd = (Decimal(part.parts) / PARTS_PER_NUSD).scaleb(-9).quantize(_EXACT)
    return f"{usd.normalize():f}"


def _cost(entry: LedgerEntry) -> MoneyShown:
    usd = None if entry.cost_nusd is None else usd_text(entry.cost_nusd)
    return MoneyShown(usd=usd, price=EntryDetails.of(entry.details).cost, billed=None, addends=[], formula="")


def _adjustment(found: SettledExchange, at: int, operator: bool) -> Adjustment:
    entry, until = found.entries[at], found.entries[: at + 1]
    details = EntryDetails.of(entry.details)
    return Adjustment(
        entry_id=entry.entry_id,
        settled_at=iso_utc(found.settled_at[at]),
        reason=str(details.why or ""),
        actor=(operator and details.actor) or details.by,
        charge_usd=_money([entry], "charge_nusd"),
        cost_usd=_money([entry], "cost_nusd") if operator else UNSET,
        counts=_known(entry),
        price_version=entry.price_version,
        prices=[
            PriceChanged(price=name, old_usd=old, new_usd=new, per=per_text(name))
            for name, old, new in price_changes(until)
        ],
        total_usd=_money(until, "charge_nusd"),
    )
