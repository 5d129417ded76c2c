"""What a check says. Law: whatever is not well comes with what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from proxy.settings import Settings


class Severity(StrEnum):
    """How much it matters."""

    OK = "ok"
    WARNING = "warning"
    """it serves and bills; somebody should know"""
    ERROR = "error"
    """it does not serve, or could lose money"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    severity: Severity
    message: str
    advice: str = ""
    """what to do; empty where all is well"""


@dataclass(frozen=True, slots=True)
class Case:
    """What is looked at."""

    settings: Settings
    now: float
    """Unix seconds"""
    call: str | None = None
    """the model that is asked for one token"""


def ok(check: str, message: str) -> Finding:
    """All is well."""
    return Finding(check, Severity.OK, message)


def warning(check: str, message: str, advice: str) -> Finding:
    """Worth knowing."""
    return Finding(check, Severity.WARNING, message, advice)


def error(check: str, message: str, advice: str) -> Finding:
    """To be mended before anybody relies on it."""
    return Finding(check, Severity.ERROR, message, advice)
