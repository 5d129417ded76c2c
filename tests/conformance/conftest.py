"""What the suites of the four systems share: one deployment, and the clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.clients import AsyncPythonClient, Client, CurlClient, NodeClient, PythonClient, node_modules
from tests.conformance.stand import Stand
from tests.support.provider import ScriptedProvider

ABSENT = "the SDK is not installed here: make test installs it"


@pytest.fixture(scope="session")
def anthropic() -> Any:
    """Imported where it is used: it takes longer than the tests."""
    return pytest.importorskip("anthropic", reason=ABSENT)


@pytest.fixture(scope="session")
def genai() -> Any:
    return pytest.importorskip("google.genai", reason=ABSENT)


@pytest.fixture(scope="session", autouse=True)
def directly() -> Iterator[None]:
    """The SDKs obey the environment's proxies; what is asked here is on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setenv("no_proxy", "127.0.0.1")
        yield


@pytest.fixture(scope="session")
def stand_process(tmp_path_factory: pytest.TempPathFactory, provider_process: ScriptedProvider) -> Iterator[Stand]:
    """One proxy process for the whole test session; how it ends is part of the test."""
    stand = Stand(tmp_path_factory.mktemp("conformance"), provider_process)
    yield stand
    stand.close()


@pytest.fixture
def stand(stand_process: Stand, provider: ScriptedProvider) -> Stand:
    """The shared deployment, its provider knowing the samples' models and nothing else, with an empty log."""
    assert provider is stand_process.provider
    stand_process.samples()
    return stand_process


@pytest.fixture(scope="session")
def python_client() -> Iterator[PythonClient]:
    """Python's `openai`, blocking."""
    client = PythonClient()
    yield client
    client.close()


@pytest.fixture(scope="session")
def node() -> Iterator[NodeClient]:
    """Node's `openai`; skips where it cannot be had."""
    client = NodeClient(node_modules())
    yield client
    client.close()


@pytest.fixture(scope="session")
def curl() -> CurlClient:
    """curl; skips where it is absent."""
    return CurlClient()


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Client:
    """The client whose fixture the test's parameter names."""
    if request.param == "python_async":
        return AsyncPythonClient()
    named: Client = request.getfixturevalue(request.param)
    return named
