"""Changes the configuration of a running deployment."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import yaml

from proxy.runtime.machine.configuration_file import STATUS_FILE
from tests.crash.stage import until
from tests.support.tokenweir import Tokenweir


def changed(running: Tokenweir, change: Callable[[Any], object]) -> None:
    """Change the configuration file."""
    document = yaml.safe_load(running.config.read_text())
    change(document)
    running.config.write_text(yaml.safe_dump(document))


def status(running: Tokenweir) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((running.folder / "data" / STATUS_FILE).read_text())
    return found


def reload(running: Tokenweir) -> tuple[int, str, str]:
    """The exit code of the command, and what it has printed."""
    done = running.command("reload", check=False)
    return done.returncode, done.stdout, done.stderr


async def reloaded(running: Tokenweir) -> dict[str, Any]:
    """Send SIGHUP. Returns the status afterwards."""
    before = status(running)["attempts"]
    running.signal(signal.SIGHUP)
    await until(lambda: status(running)["attempts"] > before)
    return status(running)
