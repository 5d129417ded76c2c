"""A block of the docs, pasted into a shell."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.waiting import wait_until

DONE = "all-of-it-was-pasted"
END_S_MAX = 10.0


@contextmanager
def pasting(block: str, folder: Path, programs: Path, timeout_s: float) -> Iterator[str]:
    """Pastes a block into a shell: what it printed. What it started ends with the context."""
    home, printed = folder / "home", folder / "printed"
    home.mkdir()
    index = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    environment = {**index, "HOME": str(home), "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin"}
    with printed.open("wb") as output:
        shell = subprocess.Popen(
            ["bash"], cwd=folder, env=environment, start_new_session=True,
            stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
    try:
        assert shell.stdin is not None
        # As in a terminal, the shell stays: the scripted provider ends with it.
        shell.stdin.write(f"{block}echo {DONE}\n")
        shell.stdin.flush()
        # All of it, once the shell has come to the end of the block.
        wait_until(lambda: f"\n{DONE}\n" in printed.read_text(), printed.read_text, within_s=timeout_s, poll_s=0.05)
        yield printed.read_text()
    finally:
        shell.kill()
        shell.communicate()
        end_group(shell.pid)


def end_group(group: int) -> None:
    """End the processes of this group, gently at first."""
    deadline_s = time.monotonic() + END_S_MAX
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
        while time.monotonic() < deadline_s:
            os.killpg(group, 0)
            time.sleep(0.05)
        os.killpg(group, signal.SIGKILL)


def explained(text: str) -> list[str]:
    """The lines of the ledger's table, without their times."""
    return [re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", line) for line in text.splitlines()]
