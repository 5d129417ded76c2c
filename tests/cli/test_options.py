"""Options of the commands, as `--help` shows them."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.cli import _parser, main
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


# A command line that is wrong → what is said of it.
WRONG = {
    "": "usage: tokenweir",
    "weigh": "unknown command 'weigh'",
    "serve --config x --port high": "--port",
    "ledger --config x --colour": "--colour",
    "keys": "usage: tokenweir keys",
    "keys create --config x": "--alias",
    "keys revoke --config x": "usage: tokenweir keys revoke",
    "keys update k --config x --budget much": "--budget: not an amount of money: 'much'",
    "keys update k --config x --budget 0.0000000001": "--budget: finer than a nano-USD",
    "keys update k --config x --rpm -1": "--rpm: not a whole number: '-1'",
    "keys update k --config x --tpm ٣": "--tpm: not a whole number",
    "keys update k --config x --on-exhausted none": "--on-exhausted",
    "keys rotate k --config x --grace 'a while'": "--grace: not a duration: 'a while'",
    "accounts create-project web --config x": "--organization",
    "credit add --config x --usd 1 --reason r": "--key --account",
    "credit add --config x --key k --account a --usd 1 --reason r": "not allowed with",
    "credit add --config x --key k --usd 1": "--reason",
    "credit add --config x --key k --usd inf --reason r": "--usd: not a finite amount",
    "adjust --config x --reason r": "usage: tokenweir adjust",
    "adjust id --config x": "--reason",
    "adjust id --config x --reason r --charge-usd much": "--charge-usd: not an amount of money: 'much'",
    "adjust id --config x --reason r --charge-usd 0.0000000001": "--charge-usd: finer than a nano-USD",
    "adjust id --config x --reason r --prompt-tokens 1.5": "--prompt-tokens",
    "rerate --config x --model m": "--since",
    "rerate --config x --model m --since 1d --price {": "--price: Expecting property name",
    "dead-letters retry --config x": "usage: tokenweir dead-letters retry",
    "dead-letters retry id --all --config x": "usage: tokenweir dead-letters retry",
    "dead-letters drop id --config x": "--reason",
}


@pytest.mark.parametrize(("command", "words"), WRONG.items())
def test_wrong_usage_is_another_exit_code(command: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command))
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "usage: tokenweir" in said
    assert words in said
