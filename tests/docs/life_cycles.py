"""The diagrams of docs/explanation/architecture.md: made from the tables of the life cycles, between two marks.

python -m tests.docs.life_cycles      writes them anew, after a table has changed
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path

from proxy.gateway.exchange import lifecycle as exchange
from proxy.gateway.websocket import lifecycle as session

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "architecture.md"
BEGIN, END = "<!-- life cycles -->\n", "<!-- /life cycles -->\n"
_PER_LINE = 4

Edge = tuple[StrEnum, StrEnum, StrEnum]
"""from, to, event"""


def diagrams() -> str:
    """Phases of an exchange, the client during it, and phases of a session, as Mermaid draws them."""
    lines = exchange.TABLE.items()
    parts: Mapping[str, Iterable[Edge]] = {
        "The phases of an exchange": ((cell[0], line.phase, cell[2]) for cell, line in lines),
        "The client of an exchange": ((cell[1], line.client, cell[2]) for cell, line in lines),
        "The phases of a session over a WebSocket": (
            (phase, line.phase, event) for (phase, event), line in session.TABLE.items()
        ),
    }
    return "\n".join(f"{title}:\n\n{diagram(edges)}" for title, edges in parts.items())


def diagram(edges: Iterable[Edge]) -> str:
    """One state diagram: from the first state on, with the events that lead from one state to another."""
    events: dict[tuple[StrEnum, StrEnum], list[StrEnum]] = {}
    for before, after, event in edges:
        if before is not after and event not in (found := events.setdefault((before, after), [])):
            found.append(event)
    states = type(next(iter(events))[0])
    order = list(states)
    arrows = [
        f"    {before.name} --> {after.name}: {_label(events[before, after])}"
        for before, after in sorted(events, key=lambda pair: (order.index(pair[0]), order.index(pair[1])))
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", f"    [*] --> {order[0].name}", *arrows, "```", ""])


def _label(events: list[StrEnum]) -> str:
    names = [event.name for event in sorted(events, key=list(type(events[0])).index)]
    rows = [", ".join(names[at : at + _PER_LINE]) for at in range(0, len(names), _PER_LINE)]
    return ",<br>".join(rows)


def written(text: str) -> str:
    """The page with the diagrams of today's tables."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{diagrams()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
