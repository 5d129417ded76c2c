"""The deployment that the gateway's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.deployment import Deployment
from tests.support.provider import ScriptedProvider


@pytest.fixture(scope="session")
def deployment_process(
    tmp_path_factory: pytest.TempPathFactory, provider_process: ScriptedProvider
) -> Iterator[Deployment]:
    """One proxy process for the whole test session; how it ends is part of the test."""
    deployment = Deployment(tmp_path_factory.mktemp("gateway"), provider_process)
    yield deployment
    deployment.close()


@pytest.fixture
def deployment(deployment_process: Deployment, provider: ScriptedProvider) -> Deployment:
    """The shared deployment, its provider with no plans and an empty log."""
    assert provider is deployment_process.provider
    return deployment_process
