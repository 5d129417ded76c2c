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
from typing import IO, TYPE_CHECKING, Any, TypeVar

from proxy.billing.money import nusd_from_usd
from proxy.settings import Settings, load

if TYPE_CHECKING:
    from proxy.runtime.machine.ledger_stores import LedgerStores

_T = TypeVar("_T")


class Failure(Exception):  # noqa: N818  not every failure is an error of ours
    """Printed on standard error; exit code 1."""


def with_config(commands: Any, name: str, help_text: str) -> argparse.ArgumentParser:
    """A command that needs the configuration."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help_text, description=help_text)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE")
    return parser


def with_commands(commands: Any, name: str, help_text: str) -> Any:
    """A command that has commands of its own."""
    parser = commands.add_parser(name, help=help_text, description=help_text)
    return parser.add_subparsers(required=True, metavar="WHAT")


def of_one(
    commands: Any, what: str, name: str, help_text: str, run: Callable[[argparse.Namespace], int], *, act: bool = False
) -> argparse.ArgumentParser:
    """A command for one key or account (`what`) that is there. `act`: it changes something."""
    parser = with_config(commands, name, help_text)
    parser.add_argument(what, metavar="KEY_ID|ALIAS" if what == "key" else "ID|NAME")
    if act:
        acts_as(parser, f"{what}.{name}", run)
    else:
        parser.set_defaults(run=run)
    return parser


def acts_as(parser: argparse.ArgumentParser, action: str, run: Callable[[argparse.Namespace], int]) -> None:
    """A command that changes something; `action` is its name among the acts."""
    parser.set_defaults(run=run, action=action)


def with_whose(parser: argparse.ArgumentParser) -> None:
    """A command about one key or account."""
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--key", metavar="KEY_ID|ALIAS")
    group.add_argument("--account", metavar="ID|NAME", help="a project or an organization")


def whose(store: LedgerStores, options: argparse.Namespace) -> tuple[str, str, str]:
    """Its id, its kind and its name. Raises ValueError: there is none."""
    if options.key is not None:
        key = store.keys.one(options.key)
        return key.key_id, "key", key.alias
    account = store.accounts.one(options.account)
    return account.account_id, account.kind.value, account.name


def typed(read: Callable[[str], _T], text: str) -> _T:
    """What argparse makes of an option's `text`: its error shows the words of `read`, not only the option."""
    try:
        return read(text)
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(str(wrong)) from None


def usd(text: str) -> int:
    """An option's USD → nUSD."""
    return typed(nusd_from_usd, text)


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that is there when all of it is written, and for its owner alone; before, and after a failure, what was
    there before. Raises OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def load_settings(config: Path) -> Settings:
    """The settings in the file `config`, with every kind of sink. Raises SettingsError."""
    from proxy.sinks.kinds import SINKS

    return load(config, os.environ, sinks=SINKS)


@contextmanager
def store_of(options: argparse.Namespace) -> Iterator[LedgerStores]:
    """The ledger and the keys that the configuration names. Raises SettingsError, LedgerUnavailable."""
    from proxy.runtime.machine.data_folder import DataFolder
    from proxy.runtime.machine.ledger_stores import LedgerStores

    settings = load_settings(options.config)
    DataFolder(settings.data_dir).make()
    store = LedgerStores.open(settings)
    try:
        with _put_down(options, store):
            yield store
    finally:
        store.close()


# What an act is done to; whatever else was typed is among its details.
_TARGETS = ("key", "account", "exchange_id", "id", "alias", "name", "model")


@contextmanager
def _put_down(options: argparse.Namespace, store: LedgerStores) -> Iterator[None]:
    given = vars(options)
    action = given.get("action")
    if action is None or given.get("dry_run"):
        yield
        return
    from proxy.ledger.accounts.audit_log import Actor

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
