"""A command starts quickly, loads its own module alone, and is ended by Ctrl-C without a traceback."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from importlib import import_module

import pytest

from proxy.cli import COMMANDS, INTERRUPTED

VERSION = """
import sys
from proxy.cli import main
try:
    main(["--version"])
except SystemExit:
    print(*[name for name in sys.modules if name.startswith("proxy")])
"""

INTERRUPTED_IMPORT = """
import atexit, os, signal, sys
from proxy.cli import main

class Finder:
    def find_spec(name, *_):
        if name == "proxy.settings.environment":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
sys.meta_path.insert(0, Finder)
atexit.register(print, "it went on after the import")
sys.exit(main(["keys", "list"]))
"""


@pytest.mark.parametrize("module", dict.fromkeys(COMMANDS.values()))
def test_each_command_is_in_the_table_with_its_module(module: str) -> None:
    commands = argparse.ArgumentParser().add_subparsers()
    import_module(f"proxy.cli.{module}").add_commands(commands)
    assert list(commands.choices) == [name for name, one in COMMANDS.items() if one == module]


@pytest.mark.process
def test_the_version_loads_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", VERSION], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1] == "proxy proxy.cli"


@pytest.mark.process
def test_ctrl_c_at_the_start_prints_no_traceback() -> None:
    for wait_s in (0.08, 0.2, 0.4):
        command = [sys.executable, "-m", "proxy", "doctor", "--call", "none"]
        started = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        time.sleep(wait_s)
        started.send_signal(signal.SIGINT)
        _, said = started.communicate(timeout=30)
        assert started.returncode in (INTERRUPTED, 1, -signal.SIGINT), wait_s  # 1: it had ended before
        if started.returncode == INTERRUPTED:  # else Python itself was starting, and prints what it likes
            assert said == "", wait_s


@pytest.mark.process
def test_ctrl_c_while_a_module_loads_ends_the_process_at_once() -> None:
    """An interrupted import of msgspec's types ended one in forty starts with a segmentation fault."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "")
