"""What every command says its words with. Law: JSON lines for programs, plain lines for people, reasons on standard
error. A command that changes something names itself as an act, and is put down before it begins."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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


def acts_as(parser: argparse.ArgumentParser, action: str, run: Callable[[argparse.Namespace], int]) -> None:
    """A command that changes something; `action` is its name among the acts."""
    parser.set_defaults(run=run, action=action)


@contextmanager
def store_of(options: argparse.Namespace) -> Iterator[Store]:
    """The ledger and the keys that the configuration names. Raises SettingsError, LedgerUnavailable."""
    from proxy.compose.store import Store

    store = Store(load(options.config, os.environ))
    try:
        with _put_down(options, store):
            yield store
    finally:
        store.close()


# What an act is done to; whatever else was typed is among its details.
_TARGETS = ("key", "account", "exchange_id", "id", "alias", "name", "model")


@contextmanager
def _put_down(options: argparse.Namespace, store: Store) -> Iterator[None]:
    given = vars(options)
    action = given.get("action")
    if action is None or given.get("dry_run"):
        yield
        return
    from proxy.ledger.acts import Actor

    target = next((str(given[name]) for name in _TARGETS if given.get(name) is not None), None)
    with store.acts.act(Actor(_account(), "cli", socket.gethostname()), action, target, {"typed": options.typed}):
        yield


def _account() -> str:
    """Of this machine, on which the command was given."""
    with suppress(KeyError, OSError):
        return getpass.getuser()
    return f"uid {os.getuid()}"


def json_line(fields: dict[str, Any]) -> str:
    """One object on one line."""
    return json.dumps(fields, ensure_ascii=False)
