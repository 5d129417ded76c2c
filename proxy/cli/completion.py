"""`tokenweir completion`: print a script that completes commands, options, choices and files in a shell.

Invariant: the script is made of the parser's own tree, so that it has every command, option and choice. It starts no
process: completion is as quick as the shell.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from proxy.cli.common import add_command
from proxy.cli.values import folder

SHELLS = ("bash", "zsh", "fish")
_PROG = "tokenweir"


def add_commands(commands: Any) -> None:
    completion = add_command(commands, "completion", "print a script that completes commands in a shell", _completion)
    completion.add_argument("shell", choices=SHELLS, help="source the script, or put it where the shell looks for it")


def _completion(options: argparse.Namespace) -> None:
    import shtab

    from proxy.cli import _parser

    parser = _parser()
    _complete_files(parser)
    print(shtab.complete(parser, options.shell, _PROG))


def _complete_files(parser: argparse.ArgumentParser) -> None:
    import shtab

    for action in parser._actions:  # noqa: SLF001  argparse has no public way to walk the tree
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for below in action.choices.values():
                _complete_files(below)
        elif action.type is folder or action.metavar == "FOLDER":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.type is Path or str(action.metavar).startswith("FILE"):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
