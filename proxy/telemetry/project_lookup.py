"""Whose project a key is of, for the metrics. Law: nothing waits for it; in an outage what is counted comes later."""

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

# An indexed look-up, once for each key: by the next scrape it is there, and a ledger that is away is not asked often.
RETRY_S = 5.0


def start_projects(metrics: Metrics, engine: Engine, tasks: Tasks, in_thread: InThread) -> None:
    """If projects have series."""
    if metrics.ledger.projects is not None:
        tasks.start(assign_projects(metrics.ledger.projects, engine, in_thread), name="projects")


async def assign_projects(
    projects: ProjectMetrics, engine: Engine, in_thread: InThread, *, retry_s: float = RETRY_S
) -> None:
    """Look up each key that is new here; ends by being cancelled."""
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
    """All of them, with None for what is no key. Raises LedgerUnavailable."""
    found = owners_of(engine, key_ids)
    return {key_id: found[key_id].project_id if key_id in found else None for key_id in key_ids}
