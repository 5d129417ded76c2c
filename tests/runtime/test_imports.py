"""What a start does not need is not loaded: a command or an embedded proxy starts in half the time."""

from __future__ import annotations

import subprocess
import sys

import pytest

# For a queue, a ledger on Postgres, an upgrade of the ledger, a look-up of a list price, traces.
OPTIONAL = frozenset({"redis", "psycopg", "alembic", "genai_prices.data", "opentelemetry"})


@pytest.mark.process
@pytest.mark.parametrize(
    ("module", "also"), [("proxy.runtime.proxy.process", frozenset()), ("proxy.sinks.kinds", {"aiohttp"})]
)
def test_only_what_every_start_needs_is_loaded(module: str, also: frozenset[str]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not (OPTIONAL | also) & set(loaded)
