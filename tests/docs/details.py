"""The details of docs/reference/flags.md: made from the docstrings of `EntryDetails`, between two marks.

python -m tests.docs.details      writes them anew, after a detail has come, gone or changed
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from proxy.billing.details import EntryDetails, detail_name

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "flags.md"
BEGIN, END = "<!-- details -->\n", "<!-- /details -->\n"


def _documented() -> Iterator[tuple[str, str]]:
    [of_class] = ast.parse(inspect.getsource(EntryDetails)).body
    assert isinstance(of_class, ast.ClassDef)
    for one, after in pairwise(of_class.body):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            assert isinstance(after, ast.Expr), f"{one.target.id} has no docstring"
            yield detail_name(getattr(EntryDetails, one.target.id)), ast.literal_eval(after.value)


def written(text: str) -> str:
    """The page with today's table."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    rows = "".join(f"| `{name}` | {meaning} |\n" for name, meaning in _documented())
    return f"{before}{BEGIN}| detail | meaning |\n|---|---|\n{rows}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
