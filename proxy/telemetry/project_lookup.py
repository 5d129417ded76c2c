"""Looks up the project of each key, for the metrics.

Invariant: nothing waits for the look-up. During an outage of the ledger, counts are kept and added later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sqlalchemy import Engine

from proxy.foundation.outage import Outage, OutageLog
from proxy.foundation.tasks import Tasks
from proxy.ledger.accounts.owners import owners_of
from proxy.storage.executor import InThread
from proxy.telemetry.metrics import Metrics
from proxy.telemetry.project_metrics import ProjectMetrics

# One indexed look-up per key: done before the next scrape, and seldom retried while the ledger is unavailable.
RETRY_S = 5.0


def start_projects(metrics: Metrics, engine: Engine, tasks: Tasks, in_thread: InThread) -> None:
    """Start the look-up, if projects have their own series."""
    if metrics.ledger.projects is not None:
        tasks.start(assign_projects(metrics.ledger.projects, engine, in_thread), name="projects")


async def assign_projects(
    projects: ProjectMetrics, engine: Engine, in_thread: InThread, *, retry_s: float = RETRY_S
) -> None:
    """Look up each new key; runs until cancelled."""
    outage = Outage(OutageLog("looking up projects for the metrics"))
    while True:
        await projects.unplaced.wait()
        try:
            projects.place(await in_thread(_projects_of, engine, projects.waiting()))
        except OSError as error:
            outage.began(error)
            await asyncio.sleep(retry_s)
        else:
            outage.over()


def _projects_of(engine: Engine, key_ids: Sequence[str]) -> dict[str, str | None]:
    """Key id → project id; None for an unknown key. Raises LedgerUnavailable."""
    found = owners_of(engine, key_ids)
    return {key_id: found[key_id].project_id if key_id in found else None for key_id in key_ids}
