"""What every command says its words with. Law: JSON lines for programs, plain lines for people, reasons on standard
error."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxy.settings import load

if TYPE_CHECKING:
    from proxy.compose.store import Store


class Failure(Exception):  # noqa: N818  not every failure is an error of ours
    """Printed on standard error; exit code 1."""


def with_config(commands: Any, name: str, help_text: str) -> argparse.ArgumentParser:
    """A command that needs the configuration."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help_text, description=help_text)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE")
    return parser


@contextmanager
def store_of(options: argparse.Namespace) -> Iterator[Store]:
    """The ledger and the keys that the configuration names. Raises SettingsError, LedgerUnavailable."""
    from proxy.compose.store import Store

    store = Store(load(options.config, os.environ))
    try:
        yield store
    finally:
        store.close()


def json_line(fields: dict[str, Any]) -> str:
    """One object on one line."""
    return json.dumps(fields, ensure_ascii=False)
