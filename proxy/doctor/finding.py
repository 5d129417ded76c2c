"""The result of a check. Invariant: a note or a failure comes with advice."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from proxy.settings import Settings


class Severity(StrEnum):
    """The result of one check; the values are those of the JSON output."""

    OK = "ok"
    WARNING = "warning"
    """the deployment serves and bills; the operator may want to change something"""
    ERROR = "error"
    """the deployment does not serve, or may lose money"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    severity: Severity
    message: str
    advice: str = ""
    """action for the operator; empty for OK"""


@dataclass(frozen=True, slots=True)
class CheckedDeployment:
    """The deployment to check."""

    settings: Settings
    now: float
    """Unix seconds"""
    call: str | None = None
    """the model of the test request for one token; None: no test request"""
    file: Path | None = None
    """the configuration file; None: the settings are from the environment"""


def ok(check: str, message: str) -> Finding:
    """A finding that needs no action."""
    return Finding(check, Severity.OK, message)


def warning(check: str, message: str, advice: str) -> Finding:
    """A finding on a deployment that serves and bills. `advice`: a possible change."""
    return Finding(check, Severity.WARNING, message, advice)


def error(check: str, message: str, advice: str) -> Finding:
    """A finding on a deployment that does not serve, or may lose money. `advice`: the remedy."""
    return Finding(check, Severity.ERROR, message, advice)
