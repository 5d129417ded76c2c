"""The result of a check. Invariant: a note or a failure comes with advice."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from proxy.settings import Settings


class Severity(StrEnum):
    OK = "ok"
    NOTE = "note"
    """it serves and bills; an operator should know"""
    FAILS = "fails"
    """it does not serve, or may lose money"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    mark: Severity
    said: str
    advice: str = ""
    """what to do; empty for OK"""


@dataclass(frozen=True, slots=True)
class Case:
    """The deployment to check."""

    settings: Settings
    now: float
    """Unix seconds"""
    call: str | None = None
    """the model of the test request for one token; None: no test request"""


def ok(check: str, message: str) -> Finding:
    return Finding(check, Severity.OK, message)


def note(check: str, message: str, advice: str) -> Finding:
    return Finding(check, Severity.NOTE, message, advice)


def fails(check: str, message: str, advice: str) -> Finding:
    return Finding(check, Severity.FAILS, message, advice)
