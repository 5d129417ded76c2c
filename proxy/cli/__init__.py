"""The `tokenweir` command: option parsing, printed results and exit codes.

Exit codes: 0 success, 1 refusal or failure (the reason is on standard error), 2 wrong usage, 130 interrupted.
Invariant: these modules parse and print; other packages do the work.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from proxy import __version__
from proxy.cli import (
    accounts,
    archive,
    audit,
    backup,
    budgets,
    conformance,
    corrections,
    credit,
    dead_letters,
    doctor,
    export,
    journal,
    keys,
    ledger,
    periods,
    prices,
    reconcile,
    serve,
    sinks,
    statement,
)
from proxy.cli.common import Failure
from proxy.settings import SettingsError

# In the order of the help.
_GROUPS = (
    serve, accounts, keys, credit, budgets, ledger, corrections, prices, dead_letters, reconcile, doctor, conformance,
    backup, journal, audit, archive, statement, periods, export, sinks,
)  # fmt: skip

# 128 + SIGINT, as shells report a program that Ctrl-C ended.
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code."""
    typed = sys.argv[1:] if arguments is None else list(arguments)
    options = _parser().parse_args(typed, argparse.Namespace(typed=typed))
    try:
        code: int | None = options.run(options)
    except BrokenPipeError:  # the reader of our output, such as `head`, has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except (Failure, SettingsError, OSError, ValueError) as refusal:
        print(f"tokenweir: {refusal}", file=sys.stderr)
        return 1
    return code or 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tokenweir",
        description="A reverse proxy that meters LLM streams and bills each request in an auditable ledger.",
    )
    parser.add_argument("--version", action="version", version=f"tokenweir {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for group in _GROUPS:
        group.add_commands(commands)
    return parser
