"""Series by project: whose a key is, is looked up beside the way of records, and nothing is lost until it is known."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from proxy.billing.keys import DEFAULT_PROJECT
from proxy.foundation.tasks import Tasks
from proxy.ledger.accounts.key_store import KeyStore
from proxy.ledger.schema.migrate import migrate
from proxy.storage.database import open_engine, sqlite_url
from proxy.telemetry.metrics import OTHER, Metrics
from proxy.telemetry.project_lookup import assign_projects
from proxy.telemetry.project_metrics import ProjectMetrics
from tests.ledger.entries import an_entry
from tests.support.waiting import until


def fed(key_ids: list[str], projects_max: int = 1) -> tuple[Metrics, ProjectMetrics]:
    """One entry for each, of 100 + 20 tokens or so."""
    metrics = Metrics(["tera-large"], projects_max=projects_max)
    metrics.committed({}, entries=[an_entry(number, key_id=one) for number, one in enumerate(key_ids)], duration_s=0.1)
    assert metrics.ledger.projects is not None
    return metrics, metrics.ledger.projects


def outputs(metrics: Metrics) -> dict[str, float]:
    """Output tokens by project."""
    samples = (s for family in metrics.registry.collect() for s in family.samples)
    return {
        s.labels["project"]: s.value
        for s in samples
        if s.name == "tokenweir_project_tokens_total" and s.labels["type"] == "output"
    }


def test_only_so_many_projects_and_all_others_together() -> None:
    each = an_entry().completion_tokens
    assert each
    metrics, projects = fed(["a", "b", "c", "a", "nobody's"])
    assert outputs(metrics) == {}
    assert projects.waiting() == ["a", "b", "c", "nobody's"]
    projects.place({"a": "first", "b": "first", "c": "second"})
    assert projects.unplaced.is_set()
    projects.place({"nobody's": None})
    assert not projects.unplaced.is_set()
    assert outputs(metrics) == {"first": 3 * each, OTHER: 2 * each}
    metrics.committed({}, entries=[an_entry(9, key_id="c"), an_entry(10, key_id="b")], duration_s=0.1)
    assert projects.waiting() == []
    assert outputs(metrics) == {"first": 4 * each, OTHER: 3 * each}


def test_nobody_asked() -> None:
    metrics = Metrics(["tera-large"])
    metrics.committed({}, entries=[an_entry()], duration_s=0.1)
    assert metrics.ledger.projects is None
    assert outputs(metrics) == {}


@pytest.mark.io
async def test_a_ledger_that_is_away_delays_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = open_engine(url := sqlite_url(tmp_path / "ledger.db"))  # without its tables: nobody can be looked up
    metrics, projects = fed(["key-1"])
    tasks = Tasks()
    tasks.start(assign_projects(projects, engine, asyncio.to_thread, retry_s=0.01), name="projects")
    try:
        await until(lambda: "looking up projects" in caplog.text, within_s=30.0)
        assert projects.waiting() == ["key-1"]
        await asyncio.to_thread(migrate, url)
        # Asked meanwhile, it was nobody's key yet: one that is settled has always been made before.
        made = KeyStore(engine, clock=lambda: 1.0)
        made.create(key_id="key-2", alias="b", digest=b"2", hint="…2", models=None, expires_at=None)
        metrics.committed({}, entries=[an_entry(2, key_id="key-2")], duration_s=0.1)
        await until(lambda: set(outputs(metrics)) == {OTHER, DEFAULT_PROJECT}, within_s=30.0)
    finally:
        await tasks.stop()
        engine.dispose()
