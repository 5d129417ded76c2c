"""The Prometheus series of projects: usage and charges of their keys. The help texts are the documentation.

Invariants: see `ledger_metrics.py`. An entry names its key, not its project. The project is looked up once for each
key, outside the settling of records; until then the key's usage waits here. Nothing is counted twice or left out.
"""

from __future__ import annotations

import asyncio
from collections import Counter as Counts
from collections.abc import Mapping
from dataclasses import dataclass, field

from proxy.billing.money import NUSD_PER_USD, ZERO_NUSD, Nusd
from proxy.telemetry.histogram import Series

OTHER = "other"


@dataclass(slots=True)
class _Used:
    """Usage of one key that is not counted yet."""

    tokens: Counts[str] = field(default_factory=Counts)
    charge_nusd: Nusd = ZERO_NUSD
    """charges in nUSD"""


class ProjectMetrics:
    """The series of projects. Call from the event-loop thread only."""

    def __init__(self, series: Series, *, projects_max: int) -> None:
        """`projects_max`: how many projects have their own series; at least one."""
        self._projects_max = projects_max
        self._projects: set[str] = set()
        self._label_of: dict[str, str] = {}
        """key id → label; cached for ever: a key never changes its project"""
        self._waiting: dict[str, _Used] = {}
        """key id → usage, for keys whose project is not known yet"""
        self.unplaced = asyncio.Event()
        """an event that is set while keys wait for `place`"""
        self.tokens = series.counter(
            "tokenweir_project_tokens",
            'Tokens by project (its id; "other" beyond the configured number of projects) and type.',
            ("project", "type"),
        )
        self.charge = series.counter(
            "tokenweir_project_charge_usd",
            'Amount billed to keys, in USD, by project (its id; "other" beyond the configured number of projects).',
            ("project",),
        )

    def add(self, key_id: str, tokens: Mapping[str, int], charge_nusd: Nusd) -> None:
        """Count one entry. `charge_nusd`: nUSD, not below 0."""
        label = self._label_of.get(key_id)
        if label is not None:
            self._count(label, tokens, charge_nusd)
            return
        used = self._waiting.setdefault(key_id, _Used())
        used.tokens.update(tokens)
        used.charge_nusd = Nusd(used.charge_nusd + charge_nusd)
        self.unplaced.set()

    def waiting(self) -> list[str]:
        """The ids of keys whose project is not known yet."""
        return list(self._waiting)

    def place(self, projects: Mapping[str, str | None]) -> None:
        """`projects`: key id → project id, or None for an unknown key, which is counted as "other"."""
        for key_id, project in projects.items():
            label = self._label_of[key_id] = self._label(project)
            used = self._waiting.pop(key_id, None)
            if used is not None:
                self._count(label, used.tokens, used.charge_nusd)
        if not self._waiting:
            self.unplaced.clear()

    def _label(self, project: str | None) -> str:
        if project is not None and len(self._projects) < self._projects_max:
            self._projects.add(project)
        return project if project is not None and project in self._projects else OTHER

    def _count(self, label: str, tokens: Mapping[str, int], charge_nusd: Nusd) -> None:
        for kind, count in tokens.items():
            self.tokens.labels(label, kind).inc(count)
        self.charge.labels(label).inc(charge_nusd / NUSD_PER_USD)
