"""Who is signed in, how budgets stand, and what operators have done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from proxy.billing.money import usd_text
from proxy.billing.reservation import Standing
from proxy.console.acting import Threads
from proxy.console.api import Call, Endpoint, Reply
from proxy.ledger.acts import Acts, Line
from proxy.ledger.alerts import Subject
from proxy.ledger.reports import iso_utc

ACTS_DEFAULT, ACTS_MAX = 50, 500


class Me(msgspec.Struct, frozen=True, kw_only=True):
    """Who is signed in."""

    role: Literal["operator", "key"]
    key_id: str | None
    key_alias: str | None


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """One budget in its window. Money: decimal strings of USD."""

    scope_id: str
    scope_kind: str
    name: str
    window: str
    window_start: str | None
    window_end: str | None
    budget_usd: str
    spent_usd: str
    held_usd: str
    """kept by what runs"""
    used: float
    """spent, as a part of the budget: 0.5 is half of it"""
    running: int


class Budgets(msgspec.Struct, frozen=True, kw_only=True):
    """Those that requests have met since the counters were made."""

    object: Literal["list"] = "list"
    listed: list[Budget] = msgspec.field(name="data")


class ActsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many."""

    limit: Annotated[int, Meta(ge=1, le=ACTS_MAX)] = ACTS_DEFAULT


class ActShown(msgspec.Struct, frozen=True, kw_only=True):
    """One act."""

    id: str
    at: str
    actor: str
    via: str
    origin: str | None
    action: str
    target: str | None
    details: dict[str, Any] | None
    result: str
    words: str | None


class ActList(msgspec.Struct, frozen=True, kw_only=True):
    """The last ones, newest first."""

    object: Literal["list"] = "list"
    listed: list[ActShown] = msgspec.field(name="data")


class StandingApi:
    """The routes."""

    def __init__(
        self,
        threads: Threads,
        acts: Acts,
        *,
        standings: Callable[[], Awaitable[Sequence[Standing]]],
        subjects: Callable[[set[str]], dict[str, Subject]],
    ) -> None:
        """`standings`: of every gate. `subjects`: scopes → whose they are. Both raise OSError."""
        self._threads = threads
        self._acts = acts
        self._standings = standings
        self._subjects = subjects

    def endpoints(self) -> Iterable[Endpoint]:
        """Its lines of the table."""
        yield Endpoint(method="GET", path="/v1/me", summary="Who is signed in.", serve=self.me, answers={200: Me})
        yield Endpoint(
            method="GET", path="/v1/budgets", summary="What was spent and is held of each budget.",
            serve=self.budgets, answers={200: Budgets},
        )  # fmt: skip
        yield Endpoint(
            method="GET", path="/v1/acts", summary="What operators have done, newest first.",
            serve=self.acts, query=ActsQuery, answers={200: ActList}, operator=True,
        )  # fmt: skip

    async def me(self, call: Call) -> Reply:
        """Of this request."""
        key = call.who.key
        if key is None:
            return Reply(Me(role="operator", key_id=None, key_alias=None))
        return Reply(Me(role="key", key_id=key.key_id, key_alias=key.alias))

    async def budgets(self, call: Call) -> Reply:
        """Raises OSError."""
        every = [one for one in await self._standings() if call.who.may_see(one.gate_id)]
        known = await self._threads.run(self._subjects, {one.gate_id for one in every})
        found = [_budget(one, known[one.gate_id]) for one in every if one.gate_id in known]
        return Reply(Budgets(listed=[one for one in found if one is not None]))

    async def acts(self, call: Call) -> Reply:
        """Raises OSError."""
        return Reply(
            ActList(listed=[_act(one) for one in await self._threads.run(self._acts.latest, call.query.limit)])
        )


def _budget(one: Standing, subject: Subject) -> Budget | None:
    """None: money is not limited there."""
    limit = subject.limits.budget_usd
    if limit is None:
        return None
    spent = one.spent or 0
    ends = subject.window_end(one.since)
    return Budget(
        scope_id=subject.scope_id,
        scope_kind=subject.kind,
        name=subject.name,
        window=subject.limits.budget_window,
        window_start=iso_utc(one.since) if one.since else None,
        window_end=None if ends is None else iso_utc(ends),
        budget_usd=usd_text(limit),
        spent_usd=usd_text(spent),
        held_usd=usd_text(one.held),
        used=round(spent / limit, 6) if limit else 1.0,
        running=one.open,
    )


def _act(line: Line) -> ActShown:
    return ActShown(
        id=line.act_id,
        at=iso_utc(line.at),
        actor=line.actor,
        via=line.via,
        origin=line.origin,
        action=line.action,
        target=line.target,
        details=None if line.details is None else dict(line.details),
        result=line.result,
        words=line.words,
    )
