"""Options of the commands, as `--help` shows them."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.cli import _parser, main
from proxy.cli.values import Usd, Whole, folder, moment, moment_text

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
    if action.type in (Path, folder):
        return {"FILE", "FOLDER"}
    if action.type in (moment, moment_text):
        return {"TIME"}
    if isinstance(action.type, Usd) or action.dest in RATES:
        return {"USD"}
    if isinstance(action.type, Whole):
        return {"N", "PERCENT", None}
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
    "keys update k --config x --rpm -1": "--rpm: must be a whole number, 1 to 1000000000, not '-1'",
    "keys update k --config x --tpm ٣": "--tpm: must be a whole number",
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
    "migrate --from postgresql://u@h/d": "--from: must be sqlite:FILE",
    "migrate --from sqlite:": "--from: must be sqlite:FILE",
    "migrate --from sqlite:f --to mysql://u@h/d": "--to: must be postgresql://",
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


FREE = {
    "account", "bills", "call", "exchange", "exchange_id", "geography", "grant", "host", "key", "limit", "model",
    "name", "organization", "project", "provider", "restart", "source", "speed", "tier", "cached_input", "input",
    "output",
}  # fmt: skip
"""arguments that take any text: names, which are looked up, words of a provider, and the prices of `rerate`, which are
read together; a file is opened by its command"""
WRONG_VALUES = ("wrong!", "")


def words_of(command: str, action: argparse.Action, value: str) -> list[str]:
    """A command line with this value."""
    option = action.option_strings[0] if action.option_strings else ""
    return [*command.split(), f"{option}={value}" if option else value]


def is_free(action: argparse.Action) -> bool:
    return action.nargs == 0 or action.type is Path or (action.dest in FREE and action.type is None)


@pytest.mark.parametrize("command", sorted({command for command, _ in options(_parser()) if command}))
def test_a_wrong_value_is_wrong_usage_and_names_its_option(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each option of each command, with a value that is not of its type."""
    monkeypatch.chdir(tmp_path)  # no configuration: what were right would fail, with 1
    for action in [action for name, action in options(_parser(command.split())) if name == command]:
        if is_free(action) or isinstance(action, argparse.BooleanOptionalAction):
            continue
        name = "/".join(action.option_strings) or action.metavar or action.dest
        said = []
        for value in WRONG_VALUES:
            ended = code_of(words_of(command, action, value))
            said.append((ended, capsys.readouterr().err.splitlines()[-1]))
        assert any(code == 2 and f"error: argument {name}: " in line for code, line in said), (action, said)


def code_of(typed: list[str]) -> int:
    try:
        return main(typed)
    except SystemExit as refused:
        return int(refused.code or 0)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("serve --port 65536", "--port: must be a whole number, 0 to 65535, not '65536'"),
        ("serve --workers 0", "--workers: must be a whole number, 1 to 256, not '0'"),
        ("worker --port -1", "--port: must be a whole number, 0 to 65535, not '-1'"),
        ("ledger --limit 0", "--limit: must be a whole number, 1 or more, not '0'"),
        ("adjust id --reason r --prompt-tokens -1", "--prompt-tokens: must be a whole number, 0 to 100000000"),
        ("credit add --key k --reason r --usd 0", "--usd: must be -1000000 to 1000000 USD, not 0: '0'"),
        ("keys create --alias a --budget 5usd", "--budget: not an amount of money: '5usd'"),
        ("keys create --alias a --expires 90", "--expires: not a duration: '90'"),
        ("keys update k --parallel 0", "--parallel: must be a whole number, 1 to "),
        ("reconcile --pull", "--file, --pull, --save, --until and --csv: need --provider"),
        ("conformance --only none-*", "--only: no case has the name 'none-*'"),
        ("conformance", "--gateway is required"),
    ],
)
def test_a_value_out_of_range_too(command: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(shlex.split(command)) == 2
    assert says in capsys.readouterr().err.splitlines()[-1]


# command without `--json` → the reason.
WITHOUT_JSON = {
    "completion": "prints a script",
    "demo": "runs until it has shown everything",
    "export": "writes in the formats of other programs",
    "init": "writes a file",
    "keys narrow": "prints one secret alone",
    "keys pepper": "prints one secret alone",
    "serve": "runs until it is stopped",
    "statement": "has --format json",
    "worker": "runs until it is stopped",
}


def test_every_command_that_prints_data_has_json() -> None:
    lacking = set()
    for name in {name for name, _ in options(_parser()) if name}:
        own = {
            option for one, action in options(_parser(name.split())) if one == name for option in action.option_strings
        }
        lacking |= set() if "--json" in own else {name}
    assert lacking == set(WITHOUT_JSON)
