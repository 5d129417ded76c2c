"""Grants: credit of a key or an account that begins, that may expire and may recur. Pure: times are parameters.

Invariants:
- A charge burns the grants of its scope that are open for it, in the order of priority, expiry and age; of each no more
  than is left. What no grant pays for is paid from the other credit of the scope.
- A grant is open for the exchanges that began in its time, whenever they settle: an exchange that began before the
  expiry and settles afterwards burns it, and one that began before the grant never does.
- A negative adjustment gives back what its exchange has burned, the part without a grant first, then the grants in the
  reverse order. So a refund never turns a grant into credit that does not expire.
- Burned amounts follow from the grants and from the charges in the order of settlement, and from nothing else. At every
  moment: granted = burned + expired + left, and none of them is below zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec
from msgspec import structs

from proxy.billing.limits import BUDGET_NUSD_MAX
from proxy.billing.money import Nusd, usd_text
from proxy.billing.windows import CALENDAR_DAY, CALENDAR_MONTH, CALENDAR_WEEK, checked_time_zone, window_end
from proxy.foundation.ids import derived_id

RECURRENCES = (CALENDAR_DAY, CALENDAR_WEEK, CALENDAR_MONTH)
PRIORITY_DEFAULT, PRIORITY_MAX = 50, 100
"""the lowest priority number is burned first"""
NAME_CHARS_MAX = 128
# The precision of times in SQL.
_PLACES = 6


class GrantError(ValueError):
    """An invalid grant; the message is for the operator."""


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A grant; if it recurs, the grant of one window. Times: Unix seconds."""

    grant_id: str
    series_id: str
    """id of the first grant of its series; a grant that does not recur is the only one"""
    number: int
    """the number in the series; the first is 1"""
    scope_id: str
    """id of a key or an account"""
    scope_name: str
    name: str
    nusd: Nusd
    """above 0"""
    begins_at: float
    expires_at: float | None
    """None: never"""
    priority: int
    recurs: str | None
    """one of RECURRENCES: the next one begins with the next window"""
    time_zone: str | None
    """the time zone of the recurrence; None: UTC"""
    lasts_s: int | None
    """how long each grant of the series lasts; None: until the next one begins"""
    created_at: float
    """when the series was created, by the ledger's clock"""
    revoked_at: float | None = None
    """by the ledger's clock"""
    next_at: float | None = None
    """when the next grant of the series begins; None: never, or it is stored. It is computed once, because data of time
    zones change."""

    @property
    def ends_at(self) -> float:
        """The time of expiry or revocation, the earlier of them; infinite: never."""
        return min(_or_never(self.expires_at), _or_never(self.revoked_at))

    @property
    def is_void(self) -> bool:
        """Whether the grant was revoked before it began: then it is never granted."""
        return self.ends_at <= self.begins_at

    def pays_for(self, charge: Charge) -> bool:
        """Whether the charge can burn the grant.

        The ledger's clock decides beside the exchange's, which may differ: an entry that was settled before a change of
        the grant is paid as before that change.
        """
        if self.is_void or not self.begins_at <= charge.started_at < _or_never(self.expires_at):
            return False
        if charge.settled_at <= self.created_at or charge.settled_at < self.begins_at:
            return False
        revoked_at = _or_never(self.revoked_at)
        return charge.settled_at <= revoked_at or charge.started_at < revoked_at

    @property
    def order(self) -> tuple[int, float, float, float, str]:
        """The order in which grants burn."""
        return self.priority, _or_never(self.expires_at), self.begins_at, self.created_at, self.grant_id


class Charge(NamedTuple):
    """An entry that charges a scope. Times: Unix seconds."""

    entry_id: str
    exchange_id: str
    started_at: float
    settled_at: float
    nusd: int
    """below 0: an adjustment lowers the charge"""


class Burn(NamedTuple):
    """The part of a charge that a grant pays."""

    grant_id: str
    charge: Charge
    nusd: int
    """below 0: given back"""


class ExchangeBurns(msgspec.Struct):
    """What an exchange was charged so far, and which grants it has burned, in nUSD."""

    charged: int = 0
    by_grant: dict[str, int] = {}


class Waterfall:
    """Burns the grants of one scope with its charges, in the order of settlement."""

    def __init__(self, grants: Iterable[Grant], burned: Mapping[str, int]) -> None:
        """`burned`: grant id → nUSD that earlier charges burned; 0 if it is not there."""
        self._grants = sorted(grants, key=lambda one: one.order)
        self.burned = {one.grant_id: burned.get(one.grant_id, 0) for one in self._grants}
        """grant id → nUSD, up to the last charge"""

    def add(self, charge: Charge, exchange: ExchangeBurns) -> list[Burn]:
        """Burn with the next charge. `exchange`: what its exchange has burned before; updated, and read only for a
        negative charge."""
        burns = [
            Burn(grant_id, charge, nusd)
            for grant_id, nusd in (self._paid(charge) if charge.nusd > 0 else self._given_back(charge, exchange))
            if nusd
        ]
        exchange.charged += charge.nusd
        for one in burns:
            self.burned[one.grant_id] += one.nusd
            exchange.by_grant[one.grant_id] = exchange.by_grant.get(one.grant_id, 0) + one.nusd
        return burns

    def _paid(self, charge: Charge) -> Iterator[tuple[str, int]]:
        unpaid = charge.nusd
        for one in self._grants:
            if unpaid == 0:
                return
            left = one.nusd - self.burned[one.grant_id]
            if left and one.pays_for(charge):
                part = min(left, unpaid)
                unpaid -= part
                yield one.grant_id, part

    def _given_back(self, charge: Charge, exchange: ExchangeBurns) -> Iterator[tuple[str, int]]:
        not_granted = exchange.charged - sum(exchange.by_grant.values())
        back = max(0, -charge.nusd - max(0, not_granted))
        for one in reversed(self._grants):
            part = min(back, exchange.by_grant.get(one.grant_id, 0))
            back -= part
            yield one.grant_id, -part


def following(grant: Grant) -> Grant | None:
    """The next grant of the series; None: there is none. `grant`: the last one so far."""
    if grant.next_at is None or _or_never(grant.revoked_at) <= grant.next_at:
        return None
    number = grant.number + 1
    return _with_end(
        structs.replace(
            grant, grant_id=f"{grant.series_id}_{number}", number=number, begins_at=grant.next_at, revoked_at=None
        )
    )


def upcoming(last: Grant, until: float) -> Iterator[Grant]:
    """The grants of the series after `last` that begin at or before `until` (Unix seconds)."""
    one = following(last)
    while one is not None and one.begins_at <= until:
        yield one
        one = following(one)


def new_grant(
    *,
    grant_id: str,
    scope_id: str,
    scope_name: str,
    name: str,
    nusd: Nusd,
    created_at: float,
    begins_at: float | None = None,
    expires_at: float | None = None,
    lasts_s: int | None = None,
    priority: int = PRIORITY_DEFAULT,
    recurs: str | None = None,
    time_zone: str | None = None,
) -> Grant:
    """The first grant of a series. `created_at`: by the ledger's clock. `begins_at`: None: at once. `expires_at`: only
    for a grant that does not recur; None: after `lasts_s`, or never. Raises GrantError, which names the field."""
    begins = created_at if begins_at is None else begins_at
    _check(0 < nusd <= BUDGET_NUSD_MAX, f"usd: must be above 0, and at most {usd_text(BUDGET_NUSD_MAX)}")
    _check(
        bool(name) and name == name.strip() and len(name) <= NAME_CHARS_MAX and name.isprintable(),
        f"name: must be 1 to {NAME_CHARS_MAX} printable characters, without spaces at its ends",
    )
    _check(0 <= priority <= PRIORITY_MAX, f"priority: must be 0 to {PRIORITY_MAX}, not {priority}")
    _check(begins >= created_at, "begins: must not be in the past, because spend before a grant never burns it")
    _check(recurs is None or recurs in RECURRENCES, f"recurs: must be one of {', '.join(RECURRENCES)}")
    _check(time_zone is None or recurs is not None, "time_zone: is only for a grant that recurs")
    _check(expires_at is None or recurs is None, "expiry: a grant that recurs ends with its window, or after `lasts`")
    _check(expires_at is None or lasts_s is None, "lasts: cannot be combined with the time of the expiry")
    _check(expires_at is None or expires_at > begins, "expiry: must be after the grant begins")
    if time_zone is not None:
        try:
            checked_time_zone(time_zone)
        except ValueError as wrong:
            raise GrantError(f"time_zone: {wrong}") from None
    return _with_end(
        Grant(
            grant_id=grant_id, series_id=grant_id, number=1, scope_id=scope_id, scope_name=scope_name, name=name,
            nusd=nusd, begins_at=round(begins, _PLACES),
            expires_at=None if expires_at is None else round(expires_at, _PLACES), priority=priority, recurs=recurs,
            time_zone=time_zone, lasts_s=lasts_s, created_at=created_at,
        )
    )  # fmt: skip


def _check(is_valid: bool, message: str) -> None:
    if not is_valid:
        raise GrantError(message)


def _with_end(grant: Grant) -> Grant:
    """With the times that follow from its beginning."""
    next_at = None if grant.recurs is None else window_end(grant.recurs, grant.time_zone, 0.0, grant.begins_at)
    expires_at = grant.expires_at if grant.recurs is None else next_at
    if grant.lasts_s is not None:
        expires_at = round(grant.begins_at + grant.lasts_s, _PLACES)
    return structs.replace(grant, expires_at=expires_at, next_at=next_at)


def _or_never(at: float | None) -> float:
    return math.inf if at is None else at


# -- the entries of a grant ------------------------------------------------------------------------------------


class MoveKind(StrEnum):
    """How an amount of a grant moves; the values are stored."""

    GRANTED = "granted"
    BURNED = "burned"
    EXPIRED = "expired"


class GrantState(msgspec.Struct, frozen=True):
    """A grant and its amounts. Money: nUSD."""

    grant: Grant
    granted: int
    """the amount that its entries have added to the balance; 0 before the grant begins"""
    burned: int
    expired: int
    """the amount that its entries have taken from the balance at its end"""
    entries: int
    """number of these entries"""

    @property
    def left(self) -> int:
        """The amount that can still be burned, or has still to expire."""
        return self.granted - self.burned - self.expired


class GrantPosting(NamedTuple):
    """An entry that is due for a grant."""

    kind: MoveKind
    nusd: int
    """EXPIRED, below 0: given back, because a late charge has burned it"""
    state: GrantState
    """the state after the posting"""


def due_postings(state: GrantState, now: float, burned_until: float) -> Sequence[GrantPosting]:
    """The entries that are due. `now`: the ledger's clock. `burned_until`: `state` has the burns of all entries that
    were settled until then."""
    grant, postings = state.grant, []
    if state.granted == 0 and not grant.is_void and grant.begins_at <= now:
        state = structs.replace(state, granted=grant.nusd, entries=state.entries + 1)
        postings.append(GrantPosting(MoveKind.GRANTED, grant.nusd, state))
    if state.granted and grant.ends_at <= burned_until and state.left:
        nusd = state.left
        state = structs.replace(state, expired=state.expired + nusd, entries=state.entries + 1)
        postings.append(GrantPosting(MoveKind.EXPIRED, nusd, state))
    return postings


def posting_exchange_id(posting: GrantPosting, at: float) -> str:
    """The exchange id of the entry: a UUIDv7 of `at` (Unix seconds), equal for equal postings."""
    stamp = f"{round(at * 1000):012x}"
    state = posting.state
    name = f"{state.grant.grant_id}/{state.entries}/{posting.kind}/{posting.nusd}"
    return derived_id(f"{stamp[:8]}-{stamp[8:12]}", name)
