"""Options of the commands, as `--help` shows them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from proxy.cli import _parser
from proxy.cli.common import nusd
from proxy.cli.limit_options import count_or_none, nusd_or_none

TIMES = {"since", "until", "at"}
RATES = {"input", "output", "cached_input"}
"""options of `rerate` in USD per million tokens, read as text"""


def options(parser: argparse.ArgumentParser, command: str = "") -> Iterator[tuple[str, argparse.Action]]:
    """Every argument of every command, with the command's name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from options(below, f"{command} {name}".strip())
        elif not isinstance(action, argparse._HelpAction):
            yield command, action


def expected(action: argparse.Action) -> set[Any]:
    """The placeholders that fit the value of an argument; empty: any other than those of another type."""
    if action.type is Path:
        return {"FILE", "FOLDER"}
    if action.dest in TIMES:
        return {"TIME"}
    if action.type in (nusd, nusd_or_none) or action.dest in RATES:
        return {"USD"}
    if action.type in (int, count_or_none):
        return {"N", None}
    return set()


TYPED = {"TIME", "USD", "N", "FOLDER"}
"""placeholders that promise a type"""


def test_a_placeholder_fits_the_value_of_its_option() -> None:
    shown = [(f"{command} {action.dest}", action) for command, action in options(_parser())]
    assert len(shown) > 100
    wrong = {
        name: action.metavar
        for name, action in shown
        if (action.metavar not in fitting if (fitting := expected(action)) else action.metavar in TYPED)
    }
    assert wrong == {}
