"""Tables as lines of text: the columns that fit a terminal, or all of them.

Invariant: a line that is given a width is never longer; what does not fit is cut off, with an ellipsis. A line without
a width has every cell in full, so that a long one moves those behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

_BETWEEN = "  "
# The last column has no width of its own; with less it says nothing.
_REST_CHARS_MIN = 20

Paint = Callable[[str, str], str]
"""a cell's text and its severity (`ok`, `warning`, `error`) → the text with colour"""


class Column(NamedTuple):
    """One column. `cell`: the text of a row. `severity`: of a row's cell; None: it has none."""

    title: str
    width: int
    """0: the rest of the line"""
    cell: Callable[[Any], str]
    right: bool = False
    severity: Callable[[Any], str | None] = lambda _: None


class Table(NamedTuple):
    """The columns by name; those that are usual; and in which order they are left out of a line that is too long."""

    columns: Mapping[str, Column]
    usual: Sequence[str]
    left_out: Sequence[str] = ()

    def fitting(self, width: int) -> tuple[str, ...]:
        """The usual columns that fit in so many characters."""
        names = list(self.usual)
        for name in self.left_out:
            widths = (self.columns[one].width or _REST_CHARS_MIN for one in names)
            if sum(widths) + len(_BETWEEN) * (len(names) - 1) <= width:
                break
            names.remove(name)
        return tuple(names)

    def header(self, names: Sequence[str] | None = None, width: int | None = None) -> str:
        """The titles of the columns."""
        names = self.usual if names is None else names
        cells = self._padded(names, [self.columns[name].title for name in names], width)
        return _cut(_BETWEEN.join(cells).rstrip(), width)

    def line(
        self, row: Any, names: Sequence[str] | None = None, width: int | None = None, paint: Paint | None = None
    ) -> str:
        """The line of one row."""
        names = self.usual if names is None else names
        cells = self._padded(names, [self.columns[name].cell(row) for name in names], width)
        plain = _cut(_BETWEEN.join(cells).rstrip(), width)
        return plain if paint is None else self._painted(plain, cells, row, names, paint)

    def _padded(self, names: Sequence[str], cells: Sequence[str], width: int | None) -> list[str]:
        """The cells, at least as wide as their columns; if the line has a width, no wider."""
        parts = []
        for name, cell in zip(names, cells, strict=True):
            column = self.columns[name]
            shown = cell if width is None else _cut(cell, column.width or None)
            parts.append(shown.rjust(column.width) if column.right else shown.ljust(column.width))
        return parts

    def _painted(self, plain: str, cells: Sequence[str], row: Any, names: Sequence[str], paint: Paint) -> str:
        parts, at = [], 0
        for name, cell in zip(names, cells, strict=True):
            column = self.columns[name]
            end = at + len(cell)
            severity = column.severity(row)
            parts.append(plain[at:end] if severity is None else paint(plain[at:end], severity))
            parts.append(plain[end : end + len(_BETWEEN)])
            at = end + len(_BETWEEN)
        return "".join(parts).rstrip()


def _cut(text: str, width: int | None) -> str:
    return text if width is None or len(text) <= width else text[: width - 1] + "…"
