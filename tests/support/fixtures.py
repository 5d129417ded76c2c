"""Fixtures that many tests share. Loaded where tests run; pytest's process that only starts workers needs none of them,
and saves the seconds of their imports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway import deployment
from tests.support import browser, clients, ledgers, postgres, provider, valkey
from tests.support.examples import load_profile
from tests.support.made_once import share
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir, provider_section

load_profile()


def pytest_configure(config: pytest.Config) -> None:
    """Register the fixtures of other modules."""
    for module in (deployment, browser, clients, ledgers, postgres, provider, valkey):
        config.pluginmanager.register(module)


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
