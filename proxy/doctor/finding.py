"""The result of a check. Invariant: a note or a failure comes with advice."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from proxy.settings import Settings


class Severity(StrEnum):
    """The result of one check; the values are those of the JSON output."""

    OK = "ok"
    WARNING = "warning"
    """it serves and bills; an operator should know"""
    ERROR = "error"
    """it does not serve, or may lose money"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    severity: Severity
    message: str
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
    """Nothing to do."""
    return Finding(check, Severity.OK, message)


def warning(check: str, message: str, advice: str) -> Finding:
    """It serves and bills; `advice`: what an operator may want to change."""
    return Finding(check, Severity.WARNING, message, advice)


def error(check: str, message: str, advice: str) -> Finding:
    """It does not serve, or may lose money; `advice`: what to do."""
    return Finding(check, Severity.ERROR, message, advice)
