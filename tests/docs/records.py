"""Tables of docs/reference that are made of the program: the columns and details of an entry, and the metrics.

python -m tests.docs.records      writes them anew
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from proxy.billing.details import EntryDetails, detail_name
from proxy.billing.entries import STORED_NAMES, EntryKind, LedgerEntry
from proxy.billing.record import Outcome

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
EXPOSITION = Path(__file__).parents[1] / "monitoring" / "exposition.txt"
TYPES = {"str": "text", "int": "integer", "float": "number", "bool": "true or false", "Nusd": "USD"}
_SAMPLE = re.compile(r"(\w+?)(?:_bucket|_sum|_count)?(?:\{(.*)\})? \S+")


def documented(of: type) -> dict[str, str]:
    """Member of a class → its docstring, as a sentence."""
    [of_class] = ast.parse(inspect.getsource(of)).body
    assert isinstance(of_class, ast.ClassDef)
    return dict(_documented(of_class))


def _documented(of_class: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for one, after in pairwise(of_class.body):
        target = (
            one.target if isinstance(one, ast.AnnAssign) else one.targets[0] if isinstance(one, ast.Assign) else None
        )
        if isinstance(target, ast.Name):
            assert isinstance(after, ast.Expr), f"{of_class.name}.{target.id} has no docstring"
            text = ast.literal_eval(after.value)
            yield target.id, text[:1].upper() + text[1:].rstrip(".") + "."


def columns() -> Iterator[str]:
    """Name, type and meaning of each column of an entry."""
    yield from ("| column | type | meaning |", "|---|---|---|")
    for name, meaning in documented(LedgerEntry).items():
        words = str(LedgerEntry.__annotations__[name]).split(" | ")
        kind = TYPES.get(words[0], "JSON object") + (", or null" if words[1:] == ["None"] else "")
        kind = "time" if name == "started_at" else kind
        yield f"| `{STORED_NAMES[name]}` | {kind} | {meaning} |"


def details() -> Iterator[str]:
    yield from ("| detail | meaning |", "|---|---|")
    for name, meaning in documented(EntryDetails).items():
        yield f"| `{detail_name(getattr(EntryDetails, name))}` | {meaning} |"


def kinds() -> Iterator[str]:
    yield from ("| `kind` | meaning |", "|---|---|")
    for name, meaning in documented(EntryKind).items():
        yield f"| `{EntryKind[name]}` | {meaning} |"


def outcomes() -> Iterator[str]:
    yield from ("| `outcome` | meaning |", "|---|---|")
    for name, meaning in documented(Outcome).items():
        yield f"| `{Outcome[name]}` | {meaning} |"


def metrics() -> Iterator[str]:
    """Name, type, labels and meaning of each series."""
    yield from ("| metric | type | labels | meaning |", "|---|---|---|---|")
    helps: dict[str, str] = {}
    types: dict[str, str] = {}
    labels: dict[str, dict[str, None]] = {}
    for line in EXPOSITION.read_text().splitlines():
        if line.startswith("# "):
            _, what, name, text = line.split(" ", 3)
            (helps if what == "HELP" else types)[name] = text
        elif match := _SAMPLE.fullmatch(line):
            name = match[1] if match[1] in types else line.partition("{")[0].partition(" ")[0]
            found = re.findall(r'(\w+)="', match[2] or "")
            labels.setdefault(name, {}).update(dict.fromkeys(one for one in found if one != "le"))
    for name, kind in types.items():
        shown = ", ".join(f"`{one}`" for one in labels.get(name, {}))
        yield f"| `{name}` | {kind} | {shown or '–'} | {helps[name]} |"


PARTS = {
    ("entries.md", "columns"): columns,
    ("entries.md", "kinds"): kinds,
    ("entries.md", "outcomes"): outcomes,
    ("flags.md", "details"): details,
    ("metrics.md", "metrics"): metrics,
}


def pages() -> dict[Path, str]:
    """The pages with today's tables."""
    found = {}
    for (name, part), made in PARTS.items():
        page = REFERENCE / name
        before, begin, rest = found.get(page, page.read_text()).partition(f"<!-- {part} -->\n")
        _, end, after = rest.partition(f"<!-- /{part} -->\n")
        assert begin, f"{name} has no place for {part}"
        found[page] = "".join([before, begin, *(f"{line}\n" for line in made()), end, after])
    return found


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text)
