"""What a start does not need is not loaded: a command or an embedded proxy starts in half the time."""

from __future__ import annotations

import subprocess
import sys

import pytest

# For a queue, a ledger on Postgres, an upgrade of the ledger, a look-up of a list price, traces.
OPTIONAL = (
    "redis", "psycopg", "alembic", "genai_prices.data", "opentelemetry", "requests", "proxy.telemetry.traces",
)  # fmt: skip
CODE = """
import sys, proxy.sinks.kinds
print(*sys.modules)
import proxy.runtime.proxy.process
from proxy.runtime.machine import traces
assert traces.open_traces(None, traces.Metrics()) is None
print(*sys.modules)
"""


@pytest.mark.thorough
@pytest.mark.process
def test_only_what_every_start_needs_is_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    sinks, start = (set(line.split()) for line in done.stdout.splitlines())
    assert "aiohttp" not in sinks
    assert [one for one in start if one.startswith(OPTIONAL)] == []
