"""A provider's bill against our ledger, day by day and model by model. Pure.

Law: what is compared is what was used, not what our clients were charged: an exchange that we bill to nobody (it
failed, its client had left) was still served by the provider, so every exchange of this provider counts, with the
tokens and the cost that the ledger has of it, corrections included. A difference is explained by what is uncertain in
our own numbers, or it is not:

* `estimates`: no more than three times the errors that our estimates expect of themselves. For requests: an exchange
  whose usage was never reported may have been counted or not.
* `midnight`: no more than what began on one day (UTC) and ended on another. Our day is the one on which an exchange
  began; providers do not say which is theirs. Over all days of a model that must even out, but for what was running at
  the beginning and at the end.
* `rounding`: of money, a nano-dollar for each exchange, which is how finely we round, and a hundred for each amount of
  the provider's.

Everything else `differs`. What one side alone names is compared with nothing: it is never left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from enum import StrEnum
from math import ceil

from proxy.billing.money import nusd_from_usd_rounded_half_up
from proxy.reconciliation.provider_bill.bill import Bill, BillKind, BillSubject

ERRORS_MAX = 3
"""times the error that an estimate expects of itself, which is a mean: few are further off than this"""

ALL_MODELS = "*"
"""where the provider names no model, a day is compared as a whole"""
NO_MODEL = "(no model)"
"""what the provider says of no model, beside what it says of some"""

_OUR_ROUNDING_NUSD = 1
_THEIR_ROUNDING_NUSD = 100

# gpt-4o-2024-08-06, claude-sonnet-4-20250514, claude-3-5-haiku@20241022, gpt-4-0613, mistral-large-2411
_MONTH, _DAY_OF_MONTH = r"(?:0[1-9]|1[0-2])", r"[0-3]\d"
_DATES = (
    rf"20\d\d-{_MONTH}-{_DAY_OF_MONTH}",
    rf"20\d\d{_MONTH}{_DAY_OF_MONTH}",
    _MONTH + _DAY_OF_MONTH,
    rf"2\d{_MONTH}",
)
_DATE = re.compile(rf"[-@](?:{'|'.join(_DATES)})", re.ASCII)
_LATEST = "-latest"


class BillVerdict(StrEnum):
    """What is to be thought of a difference, from good to bad."""

    EQUAL = "equal"
    ROUNDING = "rounding"
    ESTIMATES = "estimates"
    MIDNIGHT = "midnight"
    DIFFERS = "differs"


@dataclass(frozen=True, slots=True)
class LedgerTotals:
    """What the ledger has of a model: the sum of the exchanges that began on one day and ended on one day (UTC), all of
    them with estimated usage, or none. Money: nUSD."""

    model: str
    """the name that the provider was asked for"""
    began: date | None
    """None: before the time that is compared"""
    ended: date | None
    """None: after it"""
    estimated: bool
    amounts: Mapping[BillKind, int]
    unknown: Mapping[BillKind, int]
    """exchanges of which nobody has said this"""
    errors: Mapping[BillKind, float]
    """the errors that the estimates expect of themselves, added up; tokens, nUSD"""


@dataclass(slots=True)
class Row:
    """One number of the provider's beside ours. Money: nUSD."""

    day: date | None
    """in UTC; None: all days together"""
    model: str | None
    """None: all models together"""
    kind: BillKind
    provider: int = 0
    ledger: int = 0
    estimated: int = 0
    """the part of `ledger` that is estimated"""
    unknown: int = 0
    """exchanges of ours of which nobody has said this number: they are not in `ledger`"""
    less: float = 0.0
    """how much less the provider may say, because of estimates"""
    more: float = 0.0
    """how much more"""
    rounding: int = 0
    """how much it may be to either side because both have rounded"""
    ended_later: int = 0
    """the part of `ledger` that ended on a later day: it may be on the provider's later day"""
    began_earlier: int = 0
    """what ended on this day and is in `ledger` on an earlier one"""

    @property
    def difference(self) -> int:
        """What the provider says more than we."""
        return self.provider - self.ledger

    @property
    def verdict(self) -> BillVerdict:
        """What explains the difference."""
        if self.difference == 0:
            return BillVerdict.EQUAL
        if abs(self.difference) <= self.rounding:
            return BillVerdict.ROUNDING
        less, more = ceil(self.less) + self.rounding, ceil(self.more) + self.rounding
        if -less <= self.difference <= more:
            return BillVerdict.ESTIMATES
        return (
            BillVerdict.MIDNIGHT
            if -less - self.ended_later <= self.difference <= more + self.began_earlier
            else BillVerdict.DIFFERS
        )

    def add(self, other: Row) -> None:
        """Make it the sum of both; but what goes over midnight between two of them stays within the sum."""
        for name in ("provider", "ledger", "estimated", "unknown", "less", "more", "rounding"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class Compared:
    """A whole comparison."""

    rows: list[Row] = field(default_factory=list)
    """by day, model and kind"""
    models: list[Row] = field(default_factory=list)
    """all days of each model"""
    totals: list[Row] = field(default_factory=list)

    @property
    def explained(self) -> bool:
        """Nothing differs, on no day and over all days of no model."""
        return all(row.verdict is not BillVerdict.DIFFERS for row in (*self.rows, *self.models))


def compare(bill: Bill, ours: Mapping[BillSubject, Sequence[LedgerTotals]]) -> Compared:
    """Every number that the provider says or we have, for the times that its export speaks of."""
    theirs = {model for subject in bill.subjects for _, model in bill.amounts(subject) if model is not None}
    names = matched(theirs, {one.model for group in ours.values() for one in group})
    done = Compared()
    for subject in bill.subjects:
        table = _Table(bill, subject, names)
        for one in ours[subject]:
            table.add_ours(one)
        table.close(done)
    for rows in (done.rows, done.models):
        rows.sort(key=_order)
    return done


def matched(theirs: Collection[str], ours: Collection[str]) -> dict[str, str]:
    """The name of either side → the name that both are compared under.

    Providers name the dated version that answered; we have the name that was asked for, which may be the one without
    a date. So a name of theirs is ours if it is the same; else the longest of ours that it is a dated version of; else
    its own. Where both kinds were asked for and only dated ones answered, nobody can tell them apart: they are one.
    """

    def name(one: str) -> str:
        undated = max((known for known in ours if is_dated(one, known)), key=len, default=None)
        if undated is None or (one in ours and undated in theirs):
            return one
        return undated

    return {one: one for one in ours} | {one: name(one) for one in theirs}


def is_dated(name: str, undated: str) -> bool:
    """True if `name` is `undated` and a date: gpt-4o-2024-08-06 of gpt-4o, or of gpt-4o-latest."""
    stem = undated.removesuffix(_LATEST)
    return name.startswith(stem) and _DATE.fullmatch(name, len(stem)) is not None


def _order(row: Row) -> tuple[date, str, int]:
    return row.day or date.min, row.model or "", list(BillKind).index(row.kind)


class _Table:
    """The rows of one subject, as they grow. Begins with what the provider says."""

    def __init__(self, bill: Bill, subject: BillSubject, names: Mapping[str, str]) -> None:
        said = bill.amounts(subject)
        self._names = names
        self._kinds = bill.kinds(subject)
        self._unnamed = ALL_MODELS if all(model is None for _, model in said) else NO_MODEL
        self._rows: dict[tuple[date | None, str, BillKind], Row] = {}
        for (day, model), amounts in said.items():
            for kind in self._kinds:
                row = self._row(day, model, kind)
                amount, rounded = amounts.get(kind, 0), bill.lines(day, model) if kind is BillKind.COST else 0
                row.provider += nusd_from_usd_rounded_half_up(Decimal(amount)) if kind is BillKind.COST else int(amount)
                row.rounding += _THEIR_ROUNDING_NUSD * rounded

    def _row(self, day: date | None, model: str | None, kind: BillKind) -> Row:
        name = self._unnamed if model is None or self._unnamed == ALL_MODELS else self._names[model]
        return self._rows.setdefault((day, name, kind), Row(day, name, kind))

    def add_ours(self, one: LedgerTotals) -> None:
        """Add it where it began, and say where else it may be."""
        for kind in self._kinds:
            if one.began is not None:
                self._add(one.began, one, kind)
            if one.ended is not None and one.ended != one.began:
                self._row(one.ended, one.model, kind).began_earlier += one.amounts[kind]
            if one.ended is not None and one.began is None:
                self._row(None, one.model, kind).began_earlier += one.amounts[kind]

    def _add(self, began: date, one: LedgerTotals, kind: BillKind) -> None:
        row, amount = self._row(began, one.model, kind), one.amounts[kind]
        row.ledger += amount
        row.estimated += amount if one.estimated else 0
        row.unknown += one.unknown[kind]
        row.less += _less(one, kind)
        row.more += one.unknown[kind] if kind is BillKind.REQUESTS else _less(one, kind)
        row.rounding += _OUR_ROUNDING_NUSD * one.amounts[BillKind.REQUESTS] if kind is BillKind.COST else 0
        if one.ended != one.began:
            row.ended_later += amount
        if one.ended is None:
            self._row(None, one.model, kind).ended_later += amount

    def close(self, done: Compared) -> None:
        """Add up the days of each model, and the models."""
        days = [row for row in self._rows.values() if row.day is not None]
        for row in days:
            self._rows.setdefault((None, row.model or "", row.kind), Row(None, row.model, row.kind)).add(row)
        models = [row for row in self._rows.values() if row.day is None]
        for kind in self._kinds:
            total = Row(None, None, kind)
            for row in models:
                if row.kind is kind:
                    total.add(row)
                    total.ended_later, total.began_earlier = (
                        total.ended_later + row.ended_later,
                        total.began_earlier + row.began_earlier,
                    )
            done.totals.append(total)
        done.rows += filter(_says_something, days)
        done.models += filter(_says_something, models)


def _less(one: LedgerTotals, kind: BillKind) -> float:
    """How much less the provider may say, because of estimates."""
    if kind is BillKind.REQUESTS:
        return one.amounts[kind] if one.estimated else 0
    return ERRORS_MAX * one.errors[kind]


def _says_something(row: Row) -> bool:
    return (row.provider, row.ledger, row.unknown) != (0, 0, 0)
