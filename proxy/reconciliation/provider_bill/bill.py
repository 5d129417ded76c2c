"""A provider's bill: the values that its usage and cost exports are read into.

Invariants: reported amounts are summed and never guessed; a result that cannot be read is an error with its place in
the file, never left out. Fields that are not compared with the ledger (projects, keys, tiers) are ignored.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any

DAY_S = 86_400

# More than years of a provider with many models; a larger file is not an export.
ROWS_MAX = 100_000

# More than any organization uses in a day; a larger number means a broken file.
_COUNT_MAX = 10**15
_USD_MAX = 10**9
_NUMBER_CHARS_MAX = 100
_NOTHING = Decimal("NaN")
_LAST_S = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp())
_NAME_CHARS_MAX = 500


class BillError(ValueError):
    """An export that cannot be read. The message begins with the place in the file and quotes nothing of it."""


class BillKind(StrEnum):
    """The compared amounts, named as in the ledger."""

    REQUESTS = "requests"
    PROMPT = "prompt_tokens"
    CACHED = "cached_tokens"
    COMPLETION = "completion_tokens"
    CACHE_WRITE = "cache_write_tokens"
    AUDIO_PROMPT = "audio_prompt_tokens"
    AUDIO_COMPLETION = "audio_completion_tokens"
    IMAGE_PROMPT = "image_prompt_tokens"
    IMAGE_COMPLETION = "image_completion_tokens"
    SEARCHES = "searches"
    COST = "cost_usd"


class BillSubject(StrEnum):
    """The kind of an export."""

    USAGE = "usage"
    COST = "cost"


PARTS = tuple(
    kind for kind in BillKind
    if kind not in (BillKind.REQUESTS, BillKind.PROMPT, BillKind.CACHED, BillKind.COMPLETION, BillKind.COST)
)  # fmt: skip
"""parts of the tokens, and other units, that only some exports have"""

TOKENS = frozenset(kind for kind in BillKind if kind.endswith("_tokens"))

KINDS: Mapping[BillSubject, tuple[BillKind, ...]] = {
    BillSubject.USAGE: (BillKind.REQUESTS, BillKind.PROMPT, BillKind.CACHED, BillKind.COMPLETION, *PARTS),
    BillSubject.COST: (BillKind.COST,),
}


@dataclass(frozen=True, slots=True)
class BillResult:
    """One line of a bucket."""

    subject: BillSubject
    model: str | None
    """the provider's name of the model, or of another billed item; None: the export names none"""
    amounts: Mapping[BillKind, Decimal | int]
    """requests, tokens, searches; cost in USD"""
    not_counted: frozenset[BillKind] = frozenset()
    """amounts that the provider counts in another unit for this model: zero would be a difference without a cause"""


@dataclass(frozen=True, slots=True)
class BillBucket:
    """The usage of a period within one day (UTC). Unix seconds; `end_s` is exclusive."""

    begin_s: int
    end_s: int
    results: tuple[BillResult, ...]

    @property
    def day(self) -> date:
        """The UTC day of the bucket."""
        return datetime.fromtimestamp(self.begin_s, UTC).date()


@dataclass(frozen=True, slots=True)
class BillEndpoint:
    """One list of buckets of a provider's API."""

    path: str
    """below the provider's `admin_url`"""
    subject: BillSubject
    kinds: tuple[BillKind, ...]
    """the amounts in the endpoint's results; compared even if there is no result"""
    group_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A value of the file and its path, such as `data[3].results[0].input_tokens`."""

    value: Any
    path: str = ""

    def wrong(self, why: str) -> BillError:
        """An error about this value."""
        return BillError(f"{self.path.removesuffix(': ')}: {why}" if self.path else why)

    def has(self, name: str) -> bool:
        """True if the field exists and is not null."""
        return isinstance(self.value, dict) and self.value.get(name) is not None

    def field(self, name: str) -> JsonPath:
        """The field of this name. Raises BillError if there is none."""
        if not isinstance(self.value, dict):
            raise self.wrong("must be an object")
        place = JsonPath(self.value.get(name), f"{self.path}{'' if self.path[-1:] in ('', ' ') else '.'}{name}")
        if name not in self.value:
            raise place.wrong("is missing")
        return place

    def items(self) -> Iterator[JsonPath]:
        """The elements of the list. Raises BillError if the value is not a list."""
        if not isinstance(self.value, list):
            raise self.wrong("must be a list")
        return (JsonPath(value, f"{self.path}[{index}]") for index, value in enumerate(self.value))

    def count(self) -> int:
        """The value as a count. Raises BillError."""
        if type(self.value) is not int or not 0 <= self.value <= _COUNT_MAX:
            raise self.wrong(f"must be a whole number from 0 to {_COUNT_MAX}")
        return self.value

    def count_or_zero(self, name: str) -> int:
        """The count in the field of this name; 0 if it is missing or null."""
        if not isinstance(self.value, dict):
            raise self.wrong("must be an object")
        return self.field(name).count() if self.has(name) else 0

    def text(self) -> str:
        """The value as a short text. Raises BillError."""
        text = self.value
        if not isinstance(text, str) or not 0 < len(text) <= _NAME_CHARS_MAX or not text.isprintable():
            raise self.wrong(f"must be a text of 1 to {_NAME_CHARS_MAX} printable characters")
        return text

    def text_or_none(self, name: str) -> str | None:
        """The text in the field of this name; None if it is missing or null."""
        return self.field(name).text() if self.has(name) else None

    def amount(self) -> Decimal:
        """The value, a number or a decimal text, as an exact amount; negative: a refund. Raises BillError."""
        value = self.value
        if isinstance(value, str) and len(value) <= _NUMBER_CHARS_MAX:
            try:
                value = Decimal(value)
            except InvalidOperation:
                value = None
        amount = Decimal(value) if type(value) in (int, Decimal) else _NOTHING
        if not amount.is_finite() or abs(amount) > _USD_MAX:
            raise self.wrong(f"must be a decimal number up to {_USD_MAX}")
        return amount

    def day_of(self, begin_s: int, end_s: int) -> tuple[int, int]:
        """Both times (Unix seconds), if they are within one day (UTC); this value is the end. Raises BillError."""
        if not 0 <= begin_s < end_s <= min(begin_s - begin_s % DAY_S + DAY_S, _LAST_S):
            raise self.wrong("must be after the start and on the same UTC day: export with bucket_width=1d")
        return begin_s, end_s


class ProviderBill:
    """The amounts of an export, by day (UTC) and model."""

    def __init__(self) -> None:
        self.goes_on = False
        """the last page announces another page that is not in the file"""
        self._reported: dict[BillSubject, dict[tuple[date, str | None], Counter[BillKind]]] = defaultdict(dict)
        self._lines: dict[tuple[date, str | None], int] = Counter()
        self._covered: dict[BillSubject | None, set[tuple[int, int]]] = defaultdict(set)
        self._requested: dict[BillSubject, set[BillKind]] = defaultdict(set)
        self._not_counted: set[tuple[str | None, BillKind]] = set()

    def add(self, buckets: Iterable[BillBucket]) -> None:
        """Add a page. Raises BillError if there are too many."""
        buckets = list(buckets)
        # An empty bucket has no subject: the subjects of its page apply.
        subjects: set[BillSubject | None] = {result.subject for bucket in buckets for result in bucket.results}
        for bucket in buckets:
            for subject in subjects or {None}:
                self._covered[subject].add((bucket.begin_s, bucket.end_s))
            for result in bucket.results:
                self._add(bucket.day, result)

    def request(self, endpoint: BillEndpoint, days: Iterable[tuple[int, int]]) -> None:
        """Record that these days (Unix seconds) were requested: amounts missing in the answer are zero."""
        self._requested[endpoint.subject].update(endpoint.kinds)
        self._covered[endpoint.subject].update(days)

    def _add(self, day: date, result: BillResult) -> None:
        row = (day, result.model)
        sums = self._reported[result.subject].setdefault(row, Counter())
        for kind, amount in result.amounts.items():
            sums[kind] += amount  # type: ignore[assignment]  # an int or a Decimal
        self._not_counted.update((result.model, kind) for kind in result.not_counted)
        if result.subject is BillSubject.COST:
            self._lines[row] += 1
        if len(self._reported[result.subject]) > ROWS_MAX:
            raise BillError(f"more than {ROWS_MAX} combinations of day and model: export a shorter period")

    @property
    def subjects(self) -> tuple[BillSubject, ...]:
        """The subjects of the export; an empty export of an unknown subject counts as one of usage."""
        known = self._reported.keys() | self._requested.keys()
        return tuple(subject for subject in BillSubject if subject in known) or (BillSubject.USAGE,)

    def spans(self, subject: BillSubject) -> list[tuple[int, int]]:
        """The periods that the export covers, in order and merged: Unix seconds, the end exclusive.

        Raises BillError if two buckets overlap.
        """
        spans: list[tuple[int, int]] = []
        for begin, end in sorted(self._covered[subject] | self._covered[None]):
            if spans and begin < spans[-1][1]:
                when = datetime.fromtimestamp(begin, UTC).isoformat()
                raise BillError(f"two buckets of {subject} overlap at {when}: export each period once")
            if spans and begin == spans[-1][1]:
                spans[-1] = (spans[-1][0], end)
            else:
                spans.append((begin, end))
        return spans

    def kinds(self, subject: BillSubject) -> tuple[BillKind, ...]:
        """The amounts that the export reports; for an empty export, those that every export of usage has."""
        reported = {kind for sums in self.amounts(subject).values() for kind in sums} | self._requested.get(
            subject, set()
        )
        return tuple(kind for kind in KINDS[subject] if kind in reported) or (BillKind.PROMPT, BillKind.COMPLETION)

    @property
    def not_counted(self) -> Set[tuple[str | None, BillKind]]:
        """(model, kind) of the results that count the model in another unit; other results may have the amount."""
        return self._not_counted

    def amounts(self, subject: BillSubject) -> Mapping[tuple[date, str | None], Mapping[BillKind, Decimal | int]]:
        """(day, model) → the amounts; cost in USD."""
        return self._reported.get(subject, {})

    def lines(self, day: date, model: str | None) -> int:
        """The number of amounts that the cost of this day and model is the sum of."""
        return self._lines.get((day, model), 0)
