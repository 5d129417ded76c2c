"""The parser of the command line: an error suggests the closest valid word, with the usage of the command that was
typed, and names options, not the fields that they set."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

_CHOICE = re.compile(r"argument ([^:]+): invalid choice: '([^']*)' \(choose from (.*)\)", re.DOTALL)
_UNRECOGNIZED = "unrecognized arguments: "
# `raised: …`, `quotas, alert_only: …`.
_FIELDS = re.compile(r"[a-z_]+(?:, [a-z_]+)*(?=: )")
_COMPOUND = re.compile(r"\b[a-z]+_[a-z_]+\b")
# Fields with another name than their option.
_OPTIONS = {
    "budget_usd": "--budget", "thresholds": "--alert-at", "raised": "--raise", "quotas": "--quota", "models": "--model",
    "providers": "--provider", "tags": "--tag", "dimensions": "--dimension", "dimension_sources": "--dimension-source",
    "expiry": "--expires",
}  # fmt: skip


class Parser(argparse.ArgumentParser):
    """Used like argparse's parser."""

    commands: Any = None

    def add_subparsers(self, **settings: Any) -> Any:
        """Add the subcommands as argparse does, and keep them in `commands`. To be called once."""
        self.commands = super().add_subparsers(**settings)
        return self.commands

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does. For an unknown argument it exits with 2, and prints the usage of the subcommand."""
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self._typed(args or ()).error(_UNRECOGNIZED + " ".join(unknown))
        return options

    def with_options(self, message: str) -> str:
        """The message with the options of this command in place of the fields that they set."""

        def option(field: re.Match[str]) -> str:
            name = _OPTIONS.get(field[0], "--" + field[0].replace("_", "-"))
            return name if name in self._option_string_actions else field[0]

        named = _FIELDS.match(message)
        if named is None:
            return message
        return re.sub("[a-z_]+", option, named[0]) + _COMPOUND.sub(option, message[named.end() :])

    def error(self, message: str) -> NoReturn:
        """Exit with 2. Print the usage, and the closest valid word."""
        choice = _CHOICE.search(message)
        if choice is not None:
            name, typed, known = choice.groups()
            words = re.findall(r"[\w.:-]+", known)
            what = "unknown command" if name == "COMMAND" else f"argument {name}: unknown value"
            listed = f"; one of {', '.join(words)}" if name != "COMMAND" else ""
            super().error(f"{what} {typed!r}{_meant(typed, words) or listed}")
        if message.startswith(_UNRECOGNIZED):
            typed = message.removeprefix(_UNRECOGNIZED).split()[0].partition("=")[0]
            known_options = re.findall(r"--[\w-]+", self.format_help())
            message += _meant(typed, known_options) if typed.startswith("-") and typed not in known_options else ""
        super().error(message)

    def _typed(self, words: Sequence[str]) -> Parser:
        """The parser of the command that was typed."""
        parser = self
        for word in words:
            if parser.commands is not None and word in parser.commands.choices:
                parser = parser.commands.choices[word]
        return parser


def _meant(typed: str, known: Iterable[str]) -> str:
    near = get_close_matches(typed, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
