"""What a check says. Law: whatever is not well comes with what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from proxy.settings import Settings


class Severity(StrEnum):
    """How much it matters."""

    OK = "ok"
    NOTE = "note"
    """it serves and bills; somebody should know"""
    FAILS = "fails"
    """it does not serve, or could lose money"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    mark: Severity
    said: str
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


def ok(check: str, said: str) -> Finding:
    """All is well."""
    return Finding(check, Severity.OK, said)


def note(check: str, said: str, advice: str) -> Finding:
    """Worth knowing."""
    return Finding(check, Severity.NOTE, said, advice)


def fails(check: str, said: str, advice: str) -> Finding:
    """To be mended before anybody relies on it."""
    return Finding(check, Severity.FAILS, said, advice)
