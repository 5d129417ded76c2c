"""An observer for tests."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Recorder:
    """Records failures and their ends. A test's own class adds what else its subject reports."""

    failures: list[Exception] = field(default_factory=list)
    healings: list[Exception] = field(default_factory=list)

    def failed(self, error: Exception) -> None:
        self.failures.append(error)

    def healed(self, error: Exception) -> None:
        self.healings.append(error)
