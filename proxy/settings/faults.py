"""The faults of a configuration.

Invariant: all faults of a file are in one error, each with its place; no text of them quotes a value, which could be a
secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

_T = TypeVar("_T")


class Fault(NamedTuple):
    """A fault at one place of the configuration."""

    text: str
    """begins with the path of the field"""
    parts: tuple[str | int, ...] = ()
    """the path: names of fields, and numbers of elements, counted from 0"""
    line: int | None = None
    """in the file; None: `parts` give the place"""


class SettingsError(ValueError):
    """The configuration is wrong. The text has a line for each fault, which begins with the path of the field."""

    def __init__(self, text: str, faults: tuple[Fault, ...] = ()) -> None:
        super().__init__(text)
        self.faults = faults or (Fault(text),)

    @classmethod
    def of_all(cls, wrongs: Sequence[SettingsError]) -> SettingsError:
        """One error with the faults of all."""
        return cls("\n".join(map(str, wrongs)), tuple(fault for one in wrongs for fault in one.faults))


def gathered(readers: Iterable[Callable[[], _T]]) -> list[_T]:
    """The results of all. Raises SettingsError with the faults of each that fails: all are called."""
    results, wrongs = [], []
    for read in readers:
        try:
            results.append(read())
        except SettingsError as wrong:
            wrongs.append(wrong)
    if wrongs:
        raise SettingsError.of_all(wrongs)
    return results
