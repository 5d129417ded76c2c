"""A deployment that all these tests share, and stop or kill as they like: a start costs more than most of the tests.

So a model name is used by one test only: by it the test finds its entries among those of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from tests.crash.chaos import STREAMS, Chaos, deployment, settle
from tests.crash.stage import quick_key
from tests.support.examples import SEED
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir

# Streams that are to end in it have a quarter of it to go; those that are not have minutes.
GRACE_S = 2.0


@pytest.fixture(scope="session")
def shared(
    tmp_path_factory: pytest.TempPathFactory, provider_process: ScriptedProvider
) -> Iterator[tuple[Tokenweir, str]]:
    made = deployment(tmp_path_factory.mktemp("crash"), provider_process, shutdown_grace_s=GRACE_S)
    key = quick_key(made)
    yield made.start(), key
    made.close()


@pytest.fixture
def running(shared: tuple[Tokenweir, str], provider: ScriptedProvider) -> Tokenweir:
    """The shared deployment, serving; the provider's scripts and log are empty, and what an earlier test asked for is
    in the ledger: an exchange ends after its client has read the last byte."""
    tokenweir, _ = shared
    if tokenweir.child is None or tokenweir.child.poll() is not None:
        tokenweir.start()
    settle(tokenweir)
    return tokenweir


@pytest.fixture
def key(shared: tuple[Tokenweir, str]) -> str:
    return shared[1]


@pytest.fixture
def chaos(running: Tokenweir, key: str, provider: ScriptedProvider, request: pytest.FixtureRequest) -> Iterator[Chaos]:
    streams = getattr(request, "param", STREAMS)
    made = Chaos(running, provider, key, Random(f"{SEED} {request.node.name}"), streams=streams)
    yield made
    made.close()
