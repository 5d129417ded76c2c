"""The list of budgets and prepaid balances, with their states.

Invariant: a key sees its own budgets only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import Engine

from proxy.billing.limits import credit_counter_id
from proxy.billing.money import usd_text
from proxy.budgets.budget_state import BudgetState
from proxy.console.api.dimensions import DimensionValue, dimensions_shown
from proxy.console.api.endpoints import ApiCall, ApiReply, Endpoint
from proxy.console.api.keys import PAGE_DEFAULT, PAGE_MAX
from proxy.console.api.schemas.keys import CounterStatesOf, Text
from proxy.foundation.times import iso_utc
from proxy.reports.budget_list import BudgetFilter, BudgetOrder, BudgetStatus, read_budgets, selected, status_of
from proxy.reports.dimensions import ShownDimension, ValueReader
from proxy.storage.executor import BoundedExecutor


class BudgetsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Filters (combined with AND), order and page of the list of budgets."""

    page: Annotated[int, Meta(ge=1, le=100_000)] = 1
    size: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = PAGE_DEFAULT
    q: Text | UnsetType = UNSET
    """a part of the name or id of the owner, or of a value of a dimension; in any case"""
    kind: Literal["key", "project", "organization", "rule"] | UnsetType = UNSET
    status: Literal["active", "nearly_exhausted", "exhausted"] | UnsetType = UNSET
    """`nearly_exhausted`: 80 % or more is spent, but not all"""
    sort: Literal["budget", "spend", "name"] = "budget"
    """`budget`: used share; `spend`: spent amount"""
    order: Literal["asc", "desc"] | UnsetType = UNSET
    """by default `asc` for `name`, and else `desc`"""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """One budget in its window. Money: decimal strings of USD."""

    scope_id: str
    scope_kind: str
    name: str
    dimensions: dict[str, DimensionValue]
    """what all requests of the budget share; empty except for a limit by rule"""
    window: str
    """the window of the limit; `credit`: a prepaid balance without a window"""
    window_start: str | None
    window_end: str | None
    budget_usd: str
    spent_usd: str
    """spend by usage date: charges of exchanges that began in the window, corrections included"""
    held_usd: str
    """reserved by running exchanges"""
    used_ratio: float
    """spent part of the budget; 0.5 is 50 %"""
    status: BudgetStatus
    running: int


class BudgetPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of budgets, used or not. Of the limits by rule, those that are used the most are listed."""

    object: Literal["list"] = "list"
    listed: list[Budget] = msgspec.field(name="data")
    total_count: int
    current_page: int
    total_pages: int


@dataclass(frozen=True, slots=True)
class BudgetsApi:
    """The route `/v1/budgets`."""

    engine: Engine
    threads: BoundedExecutor
    counter_states: CounterStatesOf
    values: ValueReader
    unix_time: Callable[[], float]

    def endpoints(self) -> Iterable[Endpoint]:
        """The endpoint of this API."""
        yield Endpoint(
            method="GET", path="/v1/budgets", summary="Spent and reserved amounts of budgets, the fullest first.",
            serve=self.listed, query=BudgetsQuery, answers={200: BudgetPage},
        )  # fmt: skip

    async def listed(self, call: ApiCall) -> ApiReply:
        """A page of the budgets that the caller may see. Raises OSError."""
        query: BudgetsQuery = call.query
        own = None if call.session.key is None else call.session.key.key_id
        counters = await self.counter_states(None if own is None else [own, credit_counter_id(own)])
        states = await self.threads.run(read_budgets, self.engine, counters, self.unix_time(), own)
        texts = {} if query.q is UNSET else await self._values(states)
        found = selected(states, _wanted(query), {one: shown.value or "" for one, shown in texts.items()})
        page = found[(query.page - 1) * query.size : query.page * query.size]
        values = await self._values(page)
        return ApiReply(
            BudgetPage(
                listed=[_shown(one, values) for one in page],
                total_count=len(found),
                current_page=query.page,
                total_pages=-(-len(found) // query.size),
            )
        )

    async def _values(self, states: Sequence[BudgetState]) -> Mapping[str, ShownDimension]:
        """Value id → value, of the dimensions of these budgets. Raises OSError."""
        ids = {value_id for one in states for value_id in one.subject.dimensions.values()}
        return await self.threads.run(self.values.shown, ids) if ids else {}


def _wanted(query: BudgetsQuery) -> BudgetFilter:
    order, direction = BudgetOrder(query.sort), query.order
    return BudgetFilter(
        text=None if query.q is UNSET else query.q,
        kind=None if query.kind is UNSET else query.kind,
        status=None if query.status is UNSET else BudgetStatus(query.status),
        order=order,
        descending=order is not BudgetOrder.NAME if direction is UNSET else direction == "desc",
    )


def _shown(state: BudgetState, values: Mapping[str, ShownDimension]) -> Budget:
    """`values`: by value id."""
    return Budget(
        scope_id=state.subject.scope_id,
        scope_kind=state.subject.kind,
        name=state.subject.name,
        dimensions=dimensions_shown(state.subject.dimensions, values),
        window=state.window,
        window_start=iso_utc(state.since) if state.since else None,
        window_end=None if state.until is None else iso_utc(state.until),
        budget_usd=usd_text(state.limit_nusd),
        spent_usd=usd_text(state.spent_nusd),
        held_usd=usd_text(state.reserved_nusd),
        used_ratio=state.used_ratio,
        status=status_of(state),
        running=state.running,
    )
