"""Names that people type: of keys, accounts, exchanges, models, sinks."""

from __future__ import annotations


class UnknownNameError(ValueError):
    """No object has this name; the message names the kind of object."""


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 model`, `2 models`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
