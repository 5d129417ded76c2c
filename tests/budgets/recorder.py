"""Observers of followers and of admission."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from proxy.billing.reservation import CounterState
from tests.support.recorder import Recorder


@dataclass
class FollowerRecorder(Recorder):
    """Records what followers report, and what they pass on of spending unless it fails."""

    entries: int = 0
    drifts: list[int] = field(default_factory=list)
    spent: list[dict[str, int | None]] = field(default_factory=list)
    fails: bool = False

    def absorbed(self, entries: int) -> None:
        self.entries += entries

    def drift(self, nusd: int) -> None:
        self.drifts.append(nusd)

    async def on_spent(self, standings: Sequence[CounterState]) -> None:
        await asyncio.sleep(0)
        if self.fails:
            raise OSError("the ledger is away")
        self.spent.append({one.counter_id: one.spent for one in standings})


@dataclass
class AdmissionRecorder(Recorder):
    """Records the reasons of denials."""

    denials: list[str] = field(default_factory=list)

    def denied(self, why: str) -> None:
        self.denials.append(str(why))
