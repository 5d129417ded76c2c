"""What commands print: tables for people, JSON lines or ids for programs, and colour.

Invariants: a table fits the terminal. There is colour on a terminal only, or where FORCE_COLOR asks for it, and never
where NO_COLOR or TERM=dumb forbids it. A list that is not printed on a terminal is JSON lines.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, TypeVar

from proxy.cli.common import json_line

if TYPE_CHECKING:
    from proxy.reports.tables import Paint, Table

_COLOURS = {"ok": 32, "warning": 33, "error": 31}
_T = TypeVar("_T")

Form = tuple[Sequence[str], "int | None", "Paint | None"]
"""the columns of a table, the longest line, and its colours; None: any length, no colours"""


def has_colour() -> bool:
    """Whether standard output shows colour."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def painted(text: str, severity: str) -> str:
    """The text in the colour of its severity: `ok`, `warning` or `error`."""
    return f"\x1b[{_COLOURS[severity]}m{text}\x1b[0m" if has_colour() else text


def add_json(options: argparse._ActionsContainer, help_text: str = "print one JSON object per line") -> None:
    """Add `--json` to a command, or to a group of its options."""
    options.add_argument("--json", action="store_true", help=help_text)


def result_line(options: argparse.Namespace, fields: dict[str, Any], text: str) -> str:
    """A result of a command that has `--json`: the object of these fields for programs, else `text`."""
    return json_line(fields) if options.json else f"tokenweir: {text}"


def print_object(
    options: argparse.Namespace,
    fields: dict[str, Any],
    quiet: str = "",
    lines: Callable[[], Iterable[str]] | None = None,
) -> None:
    """Print the object of a command that has `quiet`, what `--quiet` prints, in its `add_command`; empty: it has only
    `--json`. `quiet`: the name of that field. `lines`: what a terminal shows; None: a line for each field that has a
    value, with names such as `limits.rpm` for objects in it."""
    if quiet and options.quiet:
        print(fields[quiet])
    elif prints_json(options):
        print(json_line(fields))
    else:
        print("\n".join(aligned(_flat(fields)) if lines is None else lines()))


def aligned(values: Sequence[tuple[str, str]]) -> list[str]:
    """A line for each name and value, the values below each other."""
    width = max((len(name) for name, _ in values), default=0) + 2
    return [f"{name + ':':<{width}}{value}" for name, value in values]


def _flat(fields: dict[str, Any], within: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, value in fields.items():
        if isinstance(value, dict):
            found += _flat(value, f"{within}{name}.")
        elif value not in (None, [], ""):
            found.append((within + name, _word(value)))
    return found


def _word(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_word, value))
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def add_list_options(parser: argparse.ArgumentParser, quiet: str | None = None) -> None:
    """Add the options of a command that lists rows. `quiet`: what `--quiet` prints of each."""
    form = parser.add_mutually_exclusive_group()
    add_json(form, "print one JSON object per line, as without a terminal")
    form.add_argument(
        "--wide", action="store_true", help="print every column in full, also beyond the terminal's width"
    )
    if quiet is not None:
        form.add_argument("--quiet", action="store_true", help=f"print only the {quiet}")


def print_list(options: argparse.Namespace, table: Table, rows: Iterable[dict[str, Any]], quiet: str = "") -> None:
    """Print rows in the form of the options, see `add_list_options`. `quiet`: the field for `--quiet`."""
    if quiet and options.quiet:
        for row in rows:
            print(row[quiet])
    elif options.json or not (options.wide or sys.stdout.isatty()):
        for row in rows:
            print(json_line(row))
    else:
        print_table(table, rows, wide=options.wide)


def prints_json(options: argparse.Namespace) -> bool:
    """Whether a command that has `--json` prints JSON: if that is wanted, or standard output is no terminal."""
    return options.json or not sys.stdout.isatty()


def print_table(
    table: Table, rows: Iterable[_T], *, wide: bool = False, below: Callable[[_T], None] | None = None
) -> None:
    """Print a table that fits the terminal. `wide`: all columns. `below`: prints more about a row."""
    names, width, paint = form_of(table, wide=wide)
    print(table.header(names, width))
    for row in rows:
        print(table.line(row, names, width, paint))
        if below is not None:
            below(row)


def form_of(table: Table, *, wide: bool = False) -> Form:
    """How to print this table. `wide`: all columns."""
    paint = painted if has_colour() else None
    if wide:
        return tuple(table.columns), None, paint
    if not sys.stdout.isatty():
        return tuple(table.usual), None, paint
    width = get_terminal_size().columns
    return table.fitting(width), width, paint


def cut_to_terminal(text: str) -> str:
    """The line, no longer than the terminal is wide."""
    width = get_terminal_size().columns if sys.stdout.isatty() else len(text)
    return text if len(text) <= width else text[: width - 1] + "…"
