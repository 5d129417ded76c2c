"""What is measured, what it must reach, and the table that says so.

Law: a ratio is taken within one round, where all systems met the same machine; shown is the median of all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from statistics import median

Round = Mapping[tuple[str, str], float]  # (system, figure) -> value, in the unit of the figure's row


class Against(Enum):
    """How a figure is held against its limit."""

    RATIO = "× nginx"
    G1 = "× g1"
    PLAINEST = "× chat"
    MEDIAN = "× its median"
    DIFFERENCE = "over nginx"
    ITSELF = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `most` is a ratio or in `unit`, as `against` says."""

    figure: str
    title: str
    unit: str
    against: Against
    most: float | None = None


WIRES: Mapping[str, str] = {
    "chat": "OpenAI chat",
    "hidden": "with `obfuscation`",
    "responses": "OpenAI responses",
    "messages": "Anthropic messages",
    "gemini": "Gemini",
    "ollama": "Ollama",
}
PLAINEST, FIRST_BYTE = "whole_chat_us", "first_byte_ms"
# The system, or the figure of the same system, that a figure is divided by.
_SYSTEM = {Against.RATIO: "nginx", Against.G1: "g1", Against.DIFFERENCE: "nginx"}
_FIGURE = {Against.PLAINEST: PLAINEST, Against.MEDIAN: FIRST_BYTE}


def rows(idle_streams: int, deaf: int, burst: int, burst_pace_ms: int) -> Sequence[Row]:
    """The rows, in the order of the table."""
    per_wire = [
        Row(f"whole_{wire}_us", f"same, {said}", "µs", Against.PLAINEST, 1.25)
        for wire, said in WIRES.items()
        if wire != "chat"
    ]
    return (
        Row("event_cpu_us", "CPU per relayed event, 200 streams, one event each 20 ms", "µs", Against.RATIO),
        Row("burst_cpu_us", f"same, {burst} at once each {burst_pace_ms} ms", "µs", Against.RATIO),
        Row("late_p50_us", "lateness of an event, median", "µs", Against.DIFFERENCE, 40),
        Row("late_p99_us", "lateness of an event, p99", "µs", Against.DIFFERENCE),
        Row(PLAINEST, "CPU per event, 200 streams of 100 at 50/s, from opening to record", "µs", Against.G1, 1.2),
        Row("whole_400_us", "same, 40 streams of 400 at 100/s", "µs", Against.RATIO),
        *per_wire,
        Row("one_event_us", "CPU per stream of one event", "µs", Against.G1, 1.8),
        Row("json_cpu_us", "CPU per short JSON request, everything included", "µs", Against.G1, 1.4),
        Row("json_chunked_us", "same, answered in chunks", "µs", Against.RATIO),
        Row("json_prompt_us", "same, with a prompt of 200 KB", "µs", Against.RATIO, 8),
        Row("tls_whole_chat_us", "to a provider with TLS: per event of streams of 100", "µs", Against.RATIO),
        Row("tls_whole_400_us", "same, streams of 400", "µs", Against.RATIO),
        Row("tls_json_cpu_us", "same, a short JSON request", "µs", Against.RATIO),
        Row("tls_one_event_us", "same, a stream of one event", "µs", Against.RATIO),
        Row("admission_cpu_us", "CPU that budgets at three levels add to it", "µs", Against.ITSELF, 60),
        Row(FIRST_BYTE, "time to first byte added over direct, median", "ms", Against.G1, 1.2),
        Row("first_byte_p99_ms", "same, p99", "ms", Against.MEDIAN, 3),
        Row("idle_kib", f"memory per open idle stream, {idle_streams:,} open", "KiB", Against.ITSELF, 24),
        Row("deaf_kib", f"memory for each client that stops reading, {deaf} at once", "KiB", Against.ITSELF, 256),
    )


def middle(rounds: Sequence[Round], system: str, figure: str) -> float | None:
    values = [each[system, figure] for each in rounds if (system, figure) in each]
    return median(values) if values else None


def compared(rounds: Sequence[Round], system: str, row: Row) -> float | None:
    """What is held against the row's limit: the median over the rounds that have all it takes."""
    if row.against is Against.ITSELF:
        return middle(rounds, system, row.figure)
    mine = system, row.figure
    theirs = _SYSTEM.get(row.against, system), _FIGURE.get(row.against, row.figure)
    pairs = [(each[mine], each[theirs]) for each in rounds if mine in each and theirs in each]
    if not pairs:
        return None
    if row.against is not Against.DIFFERENCE:
        return median(a / b for a, b in pairs)
    return median(a - b for a, b in pairs)


def is_met(row: Row, value: float | None) -> str:
    """`yes`, `no`, or a dash where there is nothing to say."""
    if value is None or row.most is None:
        return "–"
    return "yes" if value <= row.most else "no"


def table(rounds: Sequence[Round], shown: Sequence[Row]) -> str:
    systems = ("nginx", "aiohttp", "g1", "tokenweir")
    heads = ["", *systems, *(f"{name} to nginx" for name in systems[1:]), "tokenweir to g1", "must reach", "met?"]
    lines = [f"| {' | '.join(heads)} |".replace("|  |", "| |"), "|---" * len(heads) + "|"]
    for row in shown:
        cells = [_amount(rounds, name, row) for name in systems]
        cells += [_relation(rounds, name, row) for name in systems[1:]]
        cells += [_to_g1(rounds, row)]
        cells += [_limit(row), is_met(row, compared(rounds, "tokenweir", row))]
        lines.append(f"| {row.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _amount(rounds: Sequence[Round], system: str, row: Row) -> str:
    value = middle(rounds, system, row.figure)
    if value is None:
        return "–"
    return f"{value:.2f} {row.unit}" if abs(value) < 10 else f"{value:,.1f} {row.unit}"


def _relation(rounds: Sequence[Round], system: str, row: Row) -> str:
    if row.against is Against.PLAINEST:
        value = compared(rounds, system, row)
        return "–" if value is None else f"{value:.2f} {row.against.value}"
    against = Against.DIFFERENCE if row.against in (Against.ITSELF, Against.DIFFERENCE) else Against.RATIO
    value = compared(rounds, system, replace(row, against=against))
    if value is None:
        return "–"
    return f"{value:.2f} ×" if against is Against.RATIO else f"{value:+,.2f} {row.unit}"


def _to_g1(rounds: Sequence[Round], row: Row) -> str:
    value = compared(rounds, "tokenweir", replace(row, against=Against.G1))
    return "–" if value is None else f"{value:.2f} ×"


def _limit(row: Row) -> str:
    if row.most is None:
        return "–"
    if row.against not in (Against.DIFFERENCE, Against.ITSELF):
        return f"≤ {row.most:g} {row.against.value}"
    return f"≤ {row.most:g} {row.unit} {row.against.value}".rstrip()
