"""Leave out, unread, what `-m` cannot select: to import modules and to make thousands of tests takes seconds."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from types import FunctionType

import pytest
from _pytest.mark.expression import Expression
from _pytest.mark.structures import get_unpacked_marks

# A module's marks in one line: `pytestmark = pytest.mark.io`.
_OF_MODULE = re.compile(rb"^pytestmark = (.*)$", re.MULTILINE)
_MARK = re.compile(rb"pytest\.mark\.(\w+)")
_NAME = re.compile(r"\w+")


class Selection:
    """A plugin: tests that have marks by which `-m` leaves them out, whatever further marks they have."""

    def __init__(self, expression: str) -> None:
        self._expression = Expression.compile(expression)
        self._names = frozenset(_NAME.findall(expression)) - {"and", "or", "not"}
        self._possible: dict[frozenset[str], bool] = {}

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if collection_path.suffix != ".py":
            return None
        declared = b"".join(_OF_MODULE.findall(collection_path.read_bytes()))
        return None if self.may_select(name.decode() for name in _MARK.findall(declared)) else True

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self, obj: object) -> list[pytest.Item] | None:
        if not isinstance(obj, (FunctionType, type)):
            return None
        return None if self.may_select(mark.name for mark in get_unpacked_marks(obj)) else []

    def may_select(self, marks: Iterable[str]) -> bool:
        """Whether `-m` selects a test with these marks, or with these and some others."""
        has = self._names.intersection(marks)
        if has not in self._possible:
            others = self._names - has
            self._possible[has] = any(
                self._selects(has.union(more))
                for count in range(len(others) + 1)
                for more in combinations(others, count)
            )
        return self._possible[has]

    def _selects(self, marks: frozenset[str]) -> bool:
        return self._expression.evaluate(lambda name, /, **_: name in marks)


def register(config: pytest.Config) -> None:
    """Where a test is named, pytest has to find it, to say that it is deselected."""
    expression: str = config.option.markexpr
    if expression and not any("::" in one for one in config.args):
        config.pluginmanager.register(Selection(expression), "selection")
