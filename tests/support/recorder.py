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


@dataclass
class ShipperRecorder(Recorder):
    in_queue: int = 0
    again: int = 0
    """records that were sent more than once"""
    confirmations: int = 0

    def sent(self, records: int, *, again: int) -> None:
        self.in_queue += records
        self.again += again

    def confirmed(self, records: int) -> None:
        self.confirmations += records
