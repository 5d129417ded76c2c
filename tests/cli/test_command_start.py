"""A command starts quickly, loads its own module alone, and is ended by Ctrl-C without a traceback."""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

from proxy.cli import COMMANDS, EXIT_CODES, INTERRUPTED, main

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
    assert done.stdout.splitlines()[1] == "proxy proxy.cli proxy.cli.parser"


@pytest.mark.process
def test_ctrl_c_at_the_start_prints_no_traceback() -> None:
    for wait_s in (0.1, 0.3):
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


@pytest.mark.parametrize(
    ("typed", "usage", "says"),
    [
        ("legder", "usage: tokenweir ", "unknown command 'legder'; did you mean 'ledger'?"),
        ("keys creat --alias a", "usage: tokenweir keys ", "unknown command 'creat'; did you mean 'create'?"),
        ("ledger --jsn", "usage: tokenweir ledger ", "unrecognized arguments: --jsn; did you mean '--json'?"),
        ("keys create --alais=a --alias b", "usage: tokenweir keys create ", "did you mean '--alias'?"),
        ("serve --log-format jsn", "usage: tokenweir serve ", "unknown value 'jsn'; did you mean 'json'?"),
        ("serve --log-format 7", "usage: tokenweir serve ", "--log-format: unknown value '7'; one of text, json"),
        ("ledger extra", "usage: tokenweir ledger ", "unrecognized arguments: extra"),
        ("xyzzy", "usage: tokenweir ", "unknown command 'xyzzy'"),
    ],
)  # fmt: skip
def test_a_wrong_word_is_answered_by_the_right_one(
    typed: str, usage: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(typed.split())
    printed = capsys.readouterr().err
    assert refused.value.code == 2
    assert printed.startswith(usage)
    assert printed.splitlines()[-1].endswith(says)


def test_the_docs_have_the_exit_codes() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", text, re.MULTILINE)
    assert {int(code): meaning for code, meaning in rows} == EXIT_CODES
