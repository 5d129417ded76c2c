"""Comparison of a provider's bill with the ledger, by day and model. Pure.

Invariants: usage is compared, not the clients' charges: the provider also served exchanges that are billed to nobody
(failed, client disconnected), so every exchange of the provider counts, with its tokens and cost in the ledger,
corrections included. A model on one side only is compared with zero and never left out; an amount is left out for a
model that the provider counts in another unit. A difference gets the first verdict that explains it:

* `rounding`: for money, at most one nano-dollar per exchange, our precision, and a hundred per amount of the provider.
* `estimates`: at most three times the expected errors of our estimates. For requests: an exchange whose usage was never
  reported may or may not have been counted.
* `midnight`: at most the exchanges that began on one day (UTC) and ended on another. The ledger counts an exchange on
  the day it began; providers do not document theirs. Over all days of a model this must even out, except for the
  exchanges running at the beginning and the end.
* `differs`: everything else.
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
from proxy.reconciliation.provider_bill.bill import PARTS, BillKind, BillSubject, ProviderBill

ERRORS_MAX = 3
"""multiple of an estimate's expected error, which is a mean: few errors are larger"""

ALL_MODELS = "*"
"""the whole day, if the provider names no models"""
NO_MODEL = "(no model)"
"""amounts without a model, if the provider names models for others"""

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
    """The explanation of a difference, from best to worst."""

    EQUAL = "equal"
    ROUNDING = "rounding"
    ESTIMATES = "estimates"
    MIDNIGHT = "midnight"
    DIFFERS = "differs"


@dataclass(frozen=True, slots=True)
class LedgerTotals:
    """The ledger's sums over the exchanges of a model with the same first and last day (UTC), either all with estimated
    usage or none. Money: nUSD."""

    model: str
    """the upstream name"""
    began: date | None
    """None: before the compared period"""
    ended: date | None
    """None: after the compared period"""
    estimated: bool
    amounts: Mapping[BillKind, int]
    unknown: Mapping[BillKind, int]
    """number of exchanges without this amount"""
    errors: Mapping[BillKind, float]
    """sums of the estimates' expected errors; tokens, nUSD"""


@dataclass(slots=True)
class Row:
    """One amount of the provider and the ledger's. Money: nUSD."""

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
    """number of our exchanges without this amount: they are not in `ledger`"""
    less: float = 0.0
    """the amount by which the provider may report less because of estimates"""
    more: float = 0.0
    """the amount by which the provider may report more because of estimates"""
    rounding: int = 0
    """largest difference, either way, that rounding explains"""
    ended_later: int = 0
    """the part of `ledger` that ended on a later day, on which the provider may count it"""
    began_earlier: int = 0
    """amounts that ended on this day and are in `ledger` on an earlier one"""

    @property
    def difference(self) -> int:
        """The provider's amount minus the ledger's."""
        return self.provider - self.ledger

    @property
    def verdict(self) -> BillVerdict:
        """The explanation of the difference."""
        if self.difference == 0:
            return BillVerdict.EQUAL
        if abs(self.difference) <= self.rounding:
            return BillVerdict.ROUNDING
        less, more = ceil(self.less) + self.rounding, ceil(self.more) + self.rounding
        if -less <= self.difference <= more:
            return BillVerdict.ESTIMATES
        over_midnight = -less - self.ended_later <= self.difference <= more + self.began_earlier
        return BillVerdict.MIDNIGHT if over_midnight else BillVerdict.DIFFERS

    def add(self, other: Row) -> None:
        """Add `other`, without `ended_later` and `began_earlier`: those cancel out in a sum of days."""
        for name in ("provider", "ledger", "estimated", "unknown", "less", "more", "rounding"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class Compared:
    """The result of a comparison."""

    rows: list[Row] = field(default_factory=list)
    """one row for each day, model and kind"""
    models: list[Row] = field(default_factory=list)
    """all days of each model"""
    totals: list[Row] = field(default_factory=list)

    @property
    def explained(self) -> bool:
        """No row differs, of single days or of all days of a model."""
        return all(row.verdict is not BillVerdict.DIFFERS for row in (*self.rows, *self.models))


def compare(bill: ProviderBill, ours: Mapping[BillSubject, Sequence[LedgerTotals]]) -> Compared:
    """Compare every amount on either side, for the periods that the export covers."""
    theirs = {model for subject in bill.subjects for _, model in bill.amounts(subject) if model is not None}
    names = matched(theirs, {one.model for group in ours.values() for one in group})
    done = Compared()
    for subject in bill.subjects:
        table = _Table(bill, subject, names)
        for our in ours[subject]:
            table.add_ours(our)
        table.close(done)
    for rows in (done.rows, done.models):
        rows.sort(key=_order)
    return done


def matched(theirs: Collection[str], ours: Collection[str]) -> dict[str, str]:
    """A model's name on either side → the name that it is compared under.

    Providers report the dated version that answered; the ledger has the requested name, which may lack the date. So a
    provider's name is matched with the same name in the ledger; else with the longest name there that it is a dated
    version of; else it is compared alone. If both dated and undated names were requested and the provider reports only
    dated ones, the two cannot be distinguished and are compared as one.
    """

    def name(one: str) -> str:
        undated = max((known for known in ours if is_dated(one, known)), key=len, default=None)
        if undated is None or (one in ours and undated in theirs):
            return one
        return undated

    return {our: our for our in ours} | {their: name(their) for their in theirs}


def is_dated(name: str, undated: str) -> bool:
    """True if `name` is `undated` with a date: gpt-4o-2024-08-06 of gpt-4o, or of gpt-4o-latest."""
    stem = undated.removesuffix(_LATEST)
    return name.startswith(stem) and _DATE.fullmatch(name, len(stem)) is not None


def _order(row: Row) -> tuple[date, str, int]:
    return row.day or date.min, row.model or "", list(BillKind).index(row.kind)


class _Table:
    """The rows of one subject under construction. Begins with the provider's amounts."""

    def __init__(self, bill: ProviderBill, subject: BillSubject, names: Mapping[str, str]) -> None:
        reported = bill.amounts(subject)
        self._names = names
        self._kinds = bill.kinds(subject)
        self._unnamed = ALL_MODELS if all(model is None for _, model in reported) else NO_MODEL
        counted = {(self._name(model), kind) for (_, model), amounts in reported.items() for kind in amounts}
        self._left_out = {(self._name(model), kind) for model, kind in bill.not_counted} - counted
        self._rows: dict[tuple[date | None, str, BillKind], Row] = {}
        for (day, model), amounts in reported.items():
            for kind in self._kinds_of(model):
                row = self._row(day, model, kind)
                amount, rounded = amounts.get(kind, 0), bill.lines(day, model) if kind is BillKind.COST else 0
                row.provider += nusd_from_usd_rounded_half_up(Decimal(amount)) if kind is BillKind.COST else int(amount)
                row.rounding += _THEIR_ROUNDING_NUSD * rounded

    def _name(self, model: str | None) -> str:
        return self._unnamed if model is None or self._unnamed == ALL_MODELS else self._names[model]

    def _kinds_of(self, model: str | None) -> list[BillKind]:
        name = self._name(model)
        return [kind for kind in self._kinds if (name, kind) not in self._left_out]

    def _row(self, day: date | None, model: str | None, kind: BillKind) -> Row:
        name = self._name(model)
        return self._rows.setdefault((day, name, kind), Row(day, name, kind))

    def add_ours(self, totals: LedgerTotals) -> None:
        """Add ledger totals to the day they began, and record the other day they may be counted on."""
        for kind in self._kinds_of(totals.model):
            if totals.began is not None:
                self._add(totals.began, totals, kind)
            if totals.ended is not None and totals.ended != totals.began:
                self._row(totals.ended, totals.model, kind).began_earlier += totals.amounts[kind]
            if totals.ended is not None and totals.began is None:
                self._row(None, totals.model, kind).began_earlier += totals.amounts[kind]

    def _add(self, began: date, totals: LedgerTotals, kind: BillKind) -> None:
        row, amount = self._row(began, totals.model, kind), totals.amounts[kind]
        row.ledger += amount
        row.estimated += amount if totals.estimated else 0
        row.unknown += totals.unknown[kind]
        row.less += _less(totals, kind)
        row.more += totals.unknown[kind] if kind is BillKind.REQUESTS else _less(totals, kind)
        row.rounding += _OUR_ROUNDING_NUSD * totals.amounts[BillKind.REQUESTS] if kind is BillKind.COST else 0
        if totals.ended != totals.began:
            row.ended_later += amount
        if totals.ended is None:
            self._row(None, totals.model, kind).ended_later += amount

    def close(self, done: Compared) -> None:
        """Sum the days of each model, and the models."""
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
            if kind not in PARTS or _is_not_empty(total):
                done.totals.append(total)
        done.rows += filter(_is_not_empty, days)
        done.models += filter(_is_not_empty, models)


def _less(totals: LedgerTotals, kind: BillKind) -> float:
    """The amount by which the provider may report less because of estimates."""
    if kind is BillKind.REQUESTS:
        return totals.amounts[kind] if totals.estimated else 0
    return ERRORS_MAX * totals.errors[kind]


def _is_not_empty(row: Row) -> bool:
    return (row.provider, row.ledger, row.unknown) != (0, 0, 0)
