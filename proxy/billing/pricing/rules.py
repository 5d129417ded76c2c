"""Rules that change a price list for some requests: by the paying key or account, model, provider and time.

Invariants: the changed list depends only on facts known at admission. It is pinned at admission, and the answer is
priced by it alone. Of the rules with a list, the first match applies; also of the rules with a stated price. Of the
rules with a multiplier, all matches apply. The version of a list names every rule that changed it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from msgspec.structs import replace

from proxy.billing.record import Price

UTC = ZoneInfo("UTC")
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
# Lists made by rules; more than there are keys and models with rules of their own.
LISTS_KEPT = 4096


NO_LIST = Price("no-list", ())
"""the list of a model whose price is the cost that its answers state"""


class PriceSide(StrEnum):
    """Which of the two prices of an exchange a rule changes."""

    CHARGE = "charge"
    COST = "cost"


class Payer(NamedTuple):
    """Who pays: a key and the accounts above it."""

    key_id: str = ""
    key_alias: str = ""
    project_id: str = ""
    project: str = ""
    organization_id: str = ""
    organization: str = ""


NOBODY = Payer()
"""no rule that names a payer matches"""


@dataclass(frozen=True, slots=True)
class PricedRequest:
    """The facts of a request that rules match."""

    payer: Payer
    model: str
    """the name in the client's request"""
    provider: str
    at: float
    """Unix seconds of admission"""


@dataclass(frozen=True, slots=True)
class Hours:
    """Times of day, from the first one up to the second one; over midnight if that is earlier."""

    begin: time
    end: time


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRule:
    """One rule. Empty conditions match everything. Exactly one of `price`, `stated` and `multiply` is set."""

    name: str
    changes: PriceSide = PriceSide.CHARGE
    keys: frozenset[str] = frozenset()
    """ids or aliases of keys"""
    projects: frozenset[str] = frozenset()
    """ids or names of projects"""
    organizations: frozenset[str] = frozenset()
    """ids or names of organizations"""
    models: frozenset[str] = frozenset()
    """names of models, with `*` for any text"""
    providers: frozenset[str] = frozenset()
    begins: float | None = None
    """Unix seconds; the rule does not match before"""
    ends: float | None = None
    """Unix seconds; the rule does not match at or after this"""
    weekdays: tuple[str, ...] = ()
    """days on which the hours begin"""
    hours: Hours | None = None
    time_zone: ZoneInfo = UTC
    served_as: str | None = None
    """a fact of the answer, as in `Price.multipliers`: then the tokens of such answers are multiplied, and no more"""
    price: Price | None = field(default=None, hash=False)
    """the list instead of the other one"""
    stated: str | None = None
    """the multiplier of the cost that an answer states"""
    multiply: str | None = None
    """the multiplier of every price"""

    def matches(self, request: PricedRequest) -> bool:
        if (self.begins is not None and request.at < self.begins) or (
            self.ends is not None and request.at >= self.ends
        ):
            return False
        if not _concerns(self, request.payer, request.model, request.provider):
            return False
        return (self.hours is None and not self.weekdays) or _in_hours(self, request.at)


@lru_cache(maxsize=LISTS_KEPT)
def _concerns(rule: PriceRule, payer: Payer, model: str, provider: str) -> bool:
    return (
        (not rule.keys or not rule.keys.isdisjoint((payer.key_id, payer.key_alias)))
        and (not rule.projects or not rule.projects.isdisjoint((payer.project_id, payer.project)))
        and (not rule.organizations or not rule.organizations.isdisjoint((payer.organization_id, payer.organization)))
        and (not rule.models or any(_pattern(one).fullmatch(model) for one in rule.models))
        and (not rule.providers or provider in rule.providers)
    )


@lru_cache(maxsize=1_024)
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, name.split("*"))), re.DOTALL)


_DAY = timedelta(days=1)


def _in_hours(rule: PriceRule, at: float) -> bool:
    moment = datetime.fromtimestamp(at, rule.time_zone)
    day, of_day = moment.date(), moment.time()
    if rule.hours is not None:
        begin, end = rule.hours.begin, rule.hours.end
        after_midnight = begin > end and of_day < end
        if not (begin <= of_day < end or (begin > end and (of_day >= begin or after_midnight))):
            return False
        if after_midnight:
            day -= _DAY
    return not rule.weekdays or WEEKDAYS[day.weekday()] in rule.weekdays


class RuledLists:
    """Price lists after rules. The same list and rules give the same object."""

    def __init__(self, rules: Sequence[PriceRule]) -> None:
        self.rules = rules
        self._made: dict[tuple[int, tuple[str, ...]], tuple[Price | None, Price | None]] = {}

    def after(self, listed: Price | None, request: PricedRequest, side: PriceSide) -> Price | None:
        """The list of this request, from the one that it had without rules (None: unknown)."""
        applied = applicable(self.rules, request, side)
        if not applied:
            return listed
        place = id(listed), tuple(rule.name for rule in applied)
        before, made = self._made.get(place, (None, None))
        if made is None or before is not listed:
            made = changed(listed, applied)
            if len(self._made) >= LISTS_KEPT:
                self._made.clear()
            self._made[place] = listed, made  # with `listed`, so that its id is not another's
        return made


def applicable(rules: Iterable[PriceRule], request: PricedRequest, side: PriceSide) -> list[PriceRule]:
    """The rules that change this list, in their order."""
    matching = [rule for rule in rules if rule.changes is side and rule.matches(request)]
    first_list = next((rule for rule in matching if rule.price is not None), None)
    first_stated = next((rule for rule in matching if rule.stated is not None), None)
    return [rule for rule in matching if rule.multiply is not None or rule is first_list or rule is first_stated]


def changed(listed: Price | None, rules: Sequence[PriceRule]) -> Price | None:
    """The list after these rules; None if there is none, and nothing stated applies instead."""
    stated = next(((rule.stated,) for rule in rules if rule.stated is not None), ())
    price = next((rule.price for rule in rules if rule.price is not None), listed)
    if price is None:
        if not stated:
            return None
        price = NO_LIST
    multipliers = dict(price.multipliers)
    for rule in rules:
        if rule.multiply is not None:
            multipliers[f"{rule.served_as}#{rule.name}" if rule.served_as else f"rule:{rule.name}"] = rule.multiply
    version = "+".join((price.version, *(rule.name for rule in rules)))
    return replace(price, version=version, multipliers=multipliers, stated=stated or price.stated)
