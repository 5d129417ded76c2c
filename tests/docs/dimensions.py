"""The sources of docs/reference/dimensions.md: made from the gateway's table, between two marks.

python -m tests.docs.dimensions      writes them anew, after a source has come or gone
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from proxy.billing.dimensions import TAG
from proxy.gateway.dimensions.sources import BAGGAGE, SOURCES, OwnHeaders, Place, Source, own_sources

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "dimensions.md"
BEGIN, END = "<!-- sources -->\n", "<!-- /sources -->\n"


def _row(source: Source) -> str:
    place = "header" if source.place is Place.HEADER else "member"
    families = f" of {', '.join(f'`{family}`' for family in source.families)}" if source.families else ""
    gives = ", ".join("tags" if one == "tags" else f"`{one}`" for one in source.gives.split(", "))
    return f"| `{source.preset}` | {place} `{source.name}`{families} | {gives} |"


def table() -> str:
    every = (*own_sources(OwnHeaders()), *SOURCES)
    rows = [_row(one) for _, same in groupby(every, key=lambda one: one.preset) for one in same]
    keys = ", ".join(f"`{key}` → `{name}`" for key, name in BAGGAGE.items())
    lines = ["| preset | place | dimension |", "|---|---|---|", *rows, "", f"Keys of `baggage`: {keys},"]
    return "\n".join([*lines, f"`tokenweir.tag.NAME` → `{TAG}NAME`."]) + "\n"


def written(text: str) -> str:
    """The page with today's table."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
