"""What is measured, what it must reach, and the table that says so.

Law: a ratio is taken within one round, where all systems met the same machine; shown is the median of all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

Round = Mapping[tuple[str, str], float]  # (system, figure) -> value, in the unit of the figure's row


class Against(Enum):
    """How a figure is held against its limit."""

    RATIO = "× nginx"
    DIFFERENCE = "over nginx"
    ITSELF = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `most` is in × nginx or in `unit`, as `against` says."""

    figure: str
    title: str
    unit: str
    against: Against
    most: float | None = None


def rows(idle_streams: int, deaf: int, burst: int, burst_pace_ms: int) -> Sequence[Row]:
    """The rows, in the order of the table."""
    return (
        Row(
            "event_cpu_us",
            "CPU per relayed event, 200 streams, one event each 20 ms",
            "µs",
            Against.RATIO,
            1.9,
        ),
        Row("burst_cpu_us", f"same, {burst} at once each {burst_pace_ms} ms", "µs", Against.RATIO, 1.3),
        Row("late_p50_us", "lateness of an event, median", "µs", Against.DIFFERENCE, 40),
        Row("late_p99_us", "lateness of an event, p99", "µs", Against.DIFFERENCE),
        Row("json_cpu_us", "CPU per short JSON request, everything included", "µs", Against.RATIO, 18),
        Row("admission_cpu_us", "CPU that budgets at three levels add to it", "µs", Against.ITSELF, 60),
        Row("first_byte_ms", "time to first byte added over direct, median", "ms", Against.ITSELF, 0.6),
        Row("idle_kib", f"memory per open idle stream, {idle_streams:,} open", "KiB", Against.ITSELF, 36),
        Row("deaf_kib", f"memory for each client that stops reading, {deaf} at once", "KiB", Against.ITSELF, 256),
    )


def middle(rounds: Sequence[Round], system: str, figure: str) -> float | None:
    """The median of a figure over the rounds that have it."""
    values = [each[system, figure] for each in rounds if (system, figure) in each]
    return median(values) if values else None


def compared(rounds: Sequence[Round], system: str, row: Row) -> float | None:
    """What is held against the row's limit: the median over the rounds that have all it takes."""
    if row.against is Against.ITSELF:
        return middle(rounds, system, row.figure)
    mine, theirs = (system, row.figure), ("nginx", row.figure)
    pairs = [(each[mine], each[theirs]) for each in rounds if mine in each and theirs in each]
    if not pairs:
        return None
    if row.against is Against.RATIO:
        return median(a / b for a, b in pairs)
    return median(a - b for a, b in pairs)


def is_met(row: Row, value: float | None) -> str:
    """`yes`, `no`, or a dash where there is nothing to say."""
    if value is None or row.most is None:
        return "–"
    return "yes" if value <= row.most else "no"


def table(rounds: Sequence[Round], shown: Sequence[Row]) -> str:
    """The Markdown table."""
    lines = [
        "| | nginx | aiohttp | tokenweir | aiohttp to nginx | tokenweir to nginx | must reach | met? |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in shown:
        cells = [_amount(rounds, name, row) for name in ("nginx", "aiohttp", "tokenweir")]
        cells += [_relation(rounds, name, row) for name in ("aiohttp", "tokenweir")]
        cells += [_limit(row), is_met(row, compared(rounds, "tokenweir", row))]
        lines.append(f"| {row.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _amount(rounds: Sequence[Round], system: str, row: Row) -> str:
    value = middle(rounds, system, row.figure)
    if value is None:
        return "–"
    return f"{value:.2f} {row.unit}" if abs(value) < 10 else f"{value:,.1f} {row.unit}"


def _relation(rounds: Sequence[Round], system: str, row: Row) -> str:
    relative = row if row.against is not Against.ITSELF else Row(row.figure, "", row.unit, Against.DIFFERENCE)
    value = compared(rounds, system, relative)
    if value is None:
        return "–"
    return f"{value:.2f} ×" if row.against is Against.RATIO else f"{value:+,.2f} {row.unit}"


def _limit(row: Row) -> str:
    if row.most is None:
        return "–"
    if row.against is Against.RATIO:
        return f"≤ {row.most:g} × nginx"
    return f"≤ {row.most:g} {row.unit} {row.against.value}".rstrip()
