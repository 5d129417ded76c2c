"""The routes of docs/reference/http-api.md: made from the table of dialects, between two marks.

python -m tests.docs.routes      writes them anew, after a dialect has come or gone
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from proxy.metering.dialects import DIALECTS, FAMILIES, supports
from proxy.metering.stored_objects import OBJECT_APIS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "http-api.md"
BEGIN, END = "<!-- routes -->\n", "<!-- /routes -->\n"

# Vertex AI's paths begin in four ways, which the page names once.
_PLACES = re.compile(r"^/v1(?:beta1)?(?:/projects/\{project\}/locations/\{location\})?(?=/publishers/)")


def table() -> str:
    lines = ["| family | `POST` | WebSocket |", "|---|---|---|"]
    for family in FAMILIES:
        spoken = [one for one in DIALECTS if supports((family,), one)]
        posted = _listed(path for one in spoken if one.is_posted for path in one.paths)
        sockets = _listed(path for one in spoken if one.socket is not None for path in one.paths)
        lines.append(f"| `{family}` | {posted} | {sockets} |")
    return "\n".join([*lines, "", *objects()]) + "\n"


def objects() -> list[str]:
    """The objects that providers keep, and what can be asked of them."""
    lines = ["| objects | path | served |", "|---|---|---|"]
    for api in OBJECT_APIS:
        of_one = [f"`{one.method} …/{{id}}{one.after}`" for one in api.operations if one.after is not None]
        of_all = [f"`{one.method}`" for one in api.operations if one.after is None]
        lines.append(f"| `{api.name}` | `{api.path}` | {', '.join([*of_all, *of_one])} |")
    return lines


def _listed(paths: Iterable[str]) -> str:
    return ", ".join(f"`{path}`" for path in dict.fromkeys(_PLACES.sub("…", path) for path in paths)) or "–"


def written(text: str) -> str:
    """The page with today's table."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
