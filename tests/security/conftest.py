"""The deployment that the security tests share: small limits, one provider that is scripted and one that is raw."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.security.guarded import EXCHANGES_MAX, REQUEST_BYTES_MAX, Guarded
from tests.support.net import free_port
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import COST, PRICE, Tokenweir, provider_section


@pytest.fixture(scope="session")
def guarded_process(tmp_path_factory: pytest.TempPathFactory, provider_process: ScriptedProvider) -> Iterator[Guarded]:
    """One proxy process for the whole test session."""
    raw_port = free_port()
    priced = {"price": PRICE, "cost": COST}
    deployment = Tokenweir(
        tmp_path_factory.mktemp("guarded"),
        providers={
            "scripted": provider_section(provider_process.base_url),
            "raw": provider_section(f"http://127.0.0.1:{raw_port}/prefix/v1"),
        },
        models={"*": {"provider": "scripted", **priced}, "raw": {"provider": "raw", **priced}},
        request_bytes_max=REQUEST_BYTES_MAX,
        exchanges_max=EXCHANGES_MAX,
    )
    deployment.start()
    yield Guarded(deployment, provider_process, deployment.key(), raw_port)
    deployment.close()


@pytest.fixture
def guarded(guarded_process: Guarded, provider: ScriptedProvider) -> Guarded:
    """The shared deployment, its provider with no plans and an empty log."""
    assert provider is guarded_process.provider
    return guarded_process
