"""Fixtures that many tests share. Loaded where tests run; pytest's process that only starts workers needs none of them,
and saves the seconds of their imports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.deployment import deployment, deployment_process
from tests.support.browser import browser
from tests.support.examples import load_profile
from tests.support.ledgers import (
    database_url,
    engine,
    fresh_ledger_url,
    kept_engines,
    kept_on_postgres,
    kept_on_sqlite,
    ledger_url,
    migrated,
    postgres_ledger_url,
    postgres_url,
    store,
)
from tests.support.made_once import share
from tests.support.postgres import postgres, postgres_cluster
from tests.support.provider import ScriptedProvider, provider, provider_process
from tests.support.tokenweir import Tokenweir, provider_section
from tests.support.valkey import cluster_url, prefix, redis_url, shared_valkey, valkey

__all__ = [
    "browser",
    "cluster_url",
    "database_url",
    "deployment",
    "deployment_process",
    "engine",
    "fresh_ledger_url",
    "kept_engines",
    "kept_on_postgres",
    "kept_on_sqlite",
    "ledger_url",
    "migrated",
    "postgres",
    "postgres_cluster",
    "postgres_ledger_url",
    "postgres_url",
    "prefix",
    "provider",
    "provider_process",
    "redis_url",
    "shared_valkey",
    "store",
    "valkey",
]

load_profile()


@pytest.fixture(autouse=True, scope="session")
def _made_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        share(patch.setattr)
        yield


@pytest.fixture
def tokenweir(tmp_path: Path, provider: ScriptedProvider) -> Iterator[Callable[..., Tokenweir]]:
    """Makes deployments in front of the scripted provider (named `scripted`); all are ended after the test."""
    made: list[Tokenweir] = []

    def make(*, provider_settings: dict[str, Any] | None = None, start: bool = True, **settings: Any) -> Tokenweir:
        settings.setdefault("providers", {"scripted": provider_section(provider.base_url, **(provider_settings or {}))})
        one = Tokenweir(tmp_path / f"deployment{len(made)}", **settings)
        made.append(one)
        return one.start() if start else one

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The recorded exchanges of real providers; tests that need them skip where they are absent."""
    folder = Path(__file__).parents[3] / "shared" / "corpus"
    if not (folder / "open.jsonl").exists():
        pytest.skip("the corpus of recorded exchanges (../shared/corpus) is not on this machine")
    return folder
