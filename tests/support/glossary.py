"""Refuses the synonyms that docs/reference/glossary.md lists in `code`. `python -m tests.support.glossary`.

Names (of classes, functions, parameters, variables, attributes) and docstrings of proxy/ are read. A synonym that is
the field's own word at some place is excepted there, with the reason.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"

# (synonym, beginning of the file's path below proxy/) → the reason.
EXCEPTED = {
    ("acts", "ledger/"): "the stored name of the audit log's table",
    ("held", "budgets/sqlite/tables.py"): "the stored name of the table of reservations, `holds`",
    ("hold", "budgets/sqlite/tables.py"): "the stored name of the table of reservations, `holds`",
    ("sibling", "billing/merkle.py"): "a node of a Merkle tree with the same parent",
}

# synonym → the only places where it is refused: elsewhere it has another meaning.
WITHIN = {
    "hold": ("billing/", "budgets/", "runtime/proxy/admission.py"),  # locks and buffers hold, too
    "held": ("billing/", "budgets/", "runtime/proxy/admission.py"),
}

_ROW = re.compile(r"\| \*.*\|([^|]*)\|")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def synonyms(text: str) -> frozenset[str]:
    """The words in `code` in the last column of the glossary's tables."""
    cells = (row[1] for row in map(_ROW.fullmatch, text.splitlines()) if row is not None)
    return frozenset(word for cell in cells for word in re.findall(r"`(\w+)`", cell))


def names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.id if isinstance(node, ast.Name) else node.attr


def texts(node: ast.AST) -> Iterator[str]:
    """The docstring that this node is, if it is one."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        yield node.value.value


def found(source: str, refused: frozenset[str]) -> Iterator[tuple[int, str, str]]:
    """(line, synonym, name or docstring) of each use of a refused synonym."""
    for node in ast.walk(ast.parse(source)):
        for text in (*names(node), *texts(node)):
            for word in sorted(refused & {part.lower() for part in _WORD.findall(text)}):
                yield getattr(node, "lineno", 0), word, " ".join(text.split())[:80]


@lru_cache
def suspects(refused: frozenset[str]) -> re.Pattern[str]:
    """A synonym as a word, within CamelCase, or in capitals. Most files have none, and are not parsed."""
    words = "|".join(sorted(refused))
    return re.compile(
        rf"(?<![A-Za-z])(?:{words})(?![a-z])|(?:{words.title()})(?![a-z])|(?<![A-Z])(?:{words.upper()})(?![A-Z])"
    )


def main() -> int:
    """Print each use that is not excepted, and each exception without a use. Returns 1 if there is any."""
    refused = synonyms(GLOSSARY.read_text("utf-8"))
    wrong, used = [], set()
    for path in sorted((ROOT / "proxy").rglob("*.py")):
        source = path.read_text("utf-8")
        name = path.relative_to(ROOT / "proxy").as_posix()
        here = frozenset(word for word in refused if name.startswith(WITHIN.get(word, "")))
        if not suspects(here).search(source):
            continue
        for line, word, text in found(source, here):
            places = {place for place in EXCEPTED if place[0] == word and name.startswith(place[1])}
            used |= places
            if not places:
                wrong.append(f"proxy/{name}:{line}: {word!r} is a synonym: see docs/reference/glossary.md: {text}")
    wrong += [f"tests/support/glossary.py: the exception {place} is not used" for place in EXCEPTED.keys() - used]
    print("\n".join(wrong), end="\n" if wrong else "")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
