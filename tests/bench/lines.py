"""The table of the benchmark of many machines: a line for each figure, what it must reach, whether it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """One line. `met` None: nothing is demanded, or there are not the cores to demand it."""

    title: str
    measured: str
    must_reach: str = "–"
    met: bool | None = None


def table(lines: Sequence[Line]) -> str:
    head = ["| | measured | must reach | met? |", "|---|---|---|---|"]
    words = {True: "yes", False: "no", None: "–"}
    return "\n".join(
        [*head, *(f"| {one.title} | {one.measured} | {one.must_reach} | {words[one.met]} |" for one in lines)]
    )


def at_least(title: str, value: float, limit: float, shown: str, unit: str) -> Line:
    return Line(title, shown, f"≥ {limit:,g}{unit}", value >= limit)


def at_most(title: str, value: float, limit: float, shown: str, unit: str) -> Line:
    return Line(title, shown, f"≤ {limit:,g}{unit}", value <= limit)
