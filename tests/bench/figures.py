"""What an accuracy is: streams whose tokens are known, what estimates them, and the errors of that.

Law: the estimator in use and the baseline are asked the same of the same streams, after the same others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import median

from proxy.metering.estimator.estimate import REFERENCED, VERSION, Estimator
from proxy.metering.profile import Counted
from proxy.metering.usage import Evidence, Usage
from tests.bench.linear import Linear

# Reasoning was hidden where more of it was billed than the streamed reasoning has words of four letters.
CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Stream:
    """One recorded stream, or the part of one up to where it was cut."""

    id: str
    provider: str
    model: str
    evidence: Evidence
    size: int
    """bytes"""
    usage: Usage
    """of the whole stream"""
    tokens: float
    """generated in all, or up to the cut: the share of the characters"""
    counted: Counted | None = None
    """what was streamed, by the reference vocabulary; None: it is not counted"""

    @property
    def key(self) -> str:
        return f"{self.provider}/{self.model}"

    @property
    def hidden(self) -> bool:
        """Tokens were billed that were never streamed."""
        return (self.usage.reasoning_tokens or 0) > self.evidence.reasoning_chars / CHARS_PER_TOKEN


@dataclass(frozen=True, slots=True)
class Figures:
    """Errors of some estimates, relative to the truth."""

    streams: int
    median: float
    high: float
    """95th percentile"""
    weighted: float
    """sum of errors / sum of tokens"""
    bias: float
    """sum of estimates / sum of tokens"""

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, float]]) -> Figures:
        """From (estimate, truth), at least one."""
        found = list(pairs)
        errors = sorted(abs(said - true) / true for said, true in found)
        total = sum(true for _, true in found)
        return cls(
            len(found),
            median(errors),
            errors[int(0.95 * (len(errors) - 1))],
            sum(abs(said - true) for said, true in found) / total,
            sum(said for said, _ in found) / total,
        )


Ask = Callable[[Stream], int]
Teach = Callable[[Iterable[Stream]], Ask]
"""Streams to learn from → what estimates after them"""


def ridge(streams: Iterable[Stream]) -> Ask:
    """The estimator in use."""
    ask = referenced(replace(one, counted=None) for one in streams)
    return lambda one: ask(replace(one, counted=None))


def referenced(streams: Iterable[Stream]) -> Ask:
    """The same, with the text counted by the reference vocabulary."""
    estimator = Estimator()
    for one in streams:
        estimator.learn(one.key, evidence=one.evidence, prompt=None, usage=one.usage)
        if one.counted is not None:
            estimator.learn_counted(one.key, evidence=one.evidence, usage=one.usage, counted=one.counted)
    return lambda one: (
        estimator.completion(
            one.key, one.evidence, completion_tokens_max=None, bytes_seen=one.size, counted=one.counted
        ).tokens
    )


def linear(streams: Iterable[Stream]) -> Ask:
    """The one before."""
    estimator = Linear()
    for one in streams:
        estimator.learn(one.key, one.evidence, one.usage)
    return lambda one: estimator.tokens(one.key, one.evidence)


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    measure: Callable[[Teach], Figures]
    most: str
    """what it must reach"""


HEAD = (
    f"{'':61}{'streams':>8} | {'linear-1, before':^30} | {VERSION:^30} | {REFERENCED:^30} | must reach\n"
    f"{'':69}" + f" | {'median   95 % weighted   bias':>30}" * 3 + " |"
)


def measured(row: Row) -> str:
    found = [row.measure(teach) for teach in (linear, ridge, referenced)]
    assert len({one.streams for one in found}) == 1
    return f"{row.title:61}{found[0].streams:8} |  {' |  '.join(map(shown, found))} | {row.most}"


def shown(figures: Figures) -> str:
    return f"{figures.median:6.1%} {figures.high:6.0%} {figures.weighted:8.1%} {figures.bias:6.2f}"
