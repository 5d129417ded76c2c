"""What most tests of commands begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import Commands


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    """On a ledger with nothing in it."""
    return Commands(tmp_path, capsys)
