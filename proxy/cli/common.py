"""Helpers of all commands: options, the store, the audit log, output.

Invariants: programs get JSON lines, people get plain lines, errors go to standard error. A command that changes data is
recorded in the audit log before its work.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from proxy.foundation.files import sync
from proxy.foundation.users import operator

if TYPE_CHECKING:
    from proxy.runtime.machine.ledger_stores import LedgerStores
    from proxy.settings import Settings

Command = Callable[[argparse.Namespace], int | None]
"""runs a command; returns its exit code, None: 0"""


CONFIG_VARIABLE = "TOKENWEIR_CONFIG"
# Without the option and the variable: here, then where the packages and the image have it.
CONFIG_PLACES = (Path("tokenweir.yaml"), Path("/etc/tokenweir/tokenweir.yaml"))
CONFIG_HELP = f"configuration file (default: {CONFIG_VARIABLE}, {', '.join(map(str, CONFIG_PLACES))})"


class Failure(Exception):  # noqa: N818  most are wrong usage, not bugs
    """Printed on standard error; exit code 1."""


class WrongUsage(Failure):
    """Options that do not go together. Printed on standard error; exit code 2."""


def add_command(
    commands: Any, name: str, help_text: str, run: Command, *, action: str | None = None, quiet: str | None = None
) -> argparse.ArgumentParser:
    """Add a command. `action`: its name in the audit log; None: the command changes no data. `quiet`: see
    `output.print_object`."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help_text, description=help_text)
    parser.set_defaults(run=run, action=action, parser=parser)
    if quiet is not None:
        form = parser.add_mutually_exclusive_group()
        form.add_argument("--json", action="store_true", help="print JSON (the default without a terminal)")
        if quiet:
            form.add_argument("--quiet", action="store_true", help=f"print only the {quiet}")
    return parser


def with_config(
    commands: Any, name: str, help_text: str, run: Command, *, action: str | None = None, quiet: str | None = None
) -> argparse.ArgumentParser:
    """Add a command that needs the configuration file."""
    parser = add_command(commands, name, help_text, run, action=action, quiet=quiet)
    parser.add_argument("--config", type=Path, metavar="FILE", help=CONFIG_HELP)
    return parser


def with_commands(commands: Any, name: str, help_text: str) -> Any:
    """Add a command with subcommands. Returns their `subparsers` object."""
    parser = commands.add_parser(name, help=help_text, description=help_text)
    return parser.add_subparsers(required=True, metavar="COMMAND")


def command_for_one(
    commands: Any, kind: str, name: str, help_text: str, run: Command, *, audited: bool = True, quiet: str = ""
) -> argparse.ArgumentParser:
    """Add a command for one existing key, account, … (`kind`). `audited`: False if the command changes no data.
    `quiet`: see `output.print_object`."""
    parser = with_config(commands, name, help_text, run, action=f"{kind}.{name}" if audited else None, quiet=quiet)
    parser.add_argument(kind, metavar={"key": "KEY_ID|ALIAS", "grant": "GRANT_ID"}.get(kind, "ID|NAME"))
    return parser


def add_owner_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that select one key or account."""
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--key", metavar="KEY_ID|ALIAS", help="a key")
    group.add_argument("--account", metavar="ID|NAME", help="a project or an organization")


def owner_of(store: LedgerStores, options: argparse.Namespace) -> tuple[str, str, str]:
    """The id, kind and name of the selected key or account. Raises ValueError if there is none."""
    if options.key is not None:
        key = store.keys.one(options.key)
        return key.key_id, "key", key.alias
    account = store.accounts.one(options.account)
    return account.account_id, account.kind.value, account.name


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a file (mode 600) that atomically replaces `path` on success, and then survives a power loss. A failure
    leaves `path` unchanged. Raises OSError; Failure if its folder does not exist."""
    if not path.parent.is_dir():
        raise Failure(f"{path}: there is no folder {path.parent}")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync(path.parent)
    finally:
        part.unlink(missing_ok=True)


def config_file(given: Path | None) -> Path | None:
    """The configuration file: the one that the option names, or the variable; else the first that exists. None: there
    is none."""
    if given is not None:
        return given
    if named := os.environ.get(CONFIG_VARIABLE):
        return Path(named)
    return next((place for place in CONFIG_PLACES if os.path.lexists(place)), None)


def required_config_file(given: Path | None) -> Path:
    """The file that `config_file` finds. Raises Failure if there is none."""
    file = config_file(given)
    if file is None:
        places = " and ".join(map(str, CONFIG_PLACES))
        raise Failure(
            f"no configuration file: `tokenweir init` writes one, --config or {CONFIG_VARIABLE} names one "
            f"({places} do not exist)"
        )
    return file


def add_yes(parser: argparse.ArgumentParser) -> None:
    """Add `--yes` to a command that calls `confirm`."""
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def confirm(options: argparse.Namespace, question: str, *, by_default: bool = True) -> None:
    """Ask before a step that cannot be undone: the next line of standard input is the answer, also from a pipe or a
    file. `by_default`: whether the answer is yes where there is neither a line nor a terminal, as under cron. Raises
    Failure for any other one."""
    if options.yes:
        return
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        answer = "" if sys.stdin is None else sys.stdin.readline()
    except OSError:  # closed, or not readable
        answer = ""
    if not answer and (sys.stdin is None or not sys.stdin.isatty()):
        if not by_default:
            raise Failure("nothing was changed; --yes answers the question")
        print("yes, without any input", file=sys.stderr)
    elif answer.strip().lower() not in ("y", "yes"):
        raise Failure("nothing was changed")


def load_settings(config: Path | None) -> Settings:
    """The settings in the configuration file, with every kind of sink. `config`: as the option names it; None: it does
    not. Raises SettingsError, Failure if there is no file."""
    from proxy.settings import load
    from proxy.sinks.kinds import SINKS

    return load(required_config_file(config), os.environ, sinks=SINKS)


@contextmanager
def store_of(options: argparse.Namespace) -> Iterator[LedgerStores]:
    """The ledger, keys and accounts of the configuration. A command that changes no data creates nothing. Raises
    SettingsError, LedgerUnavailable, OutdatedLedgerError, Failure if there is no ledger to read."""
    from proxy.runtime.machine.data_folder import DataFolder, ledger_file
    from proxy.runtime.machine.ledger_stores import LedgerStores

    settings = load_settings(options.config)
    if options.action is not None:
        DataFolder(settings.data_dir).make()
    elif settings.ledger is None and not (file := ledger_file(settings)).exists():
        raise Failure(f"{file}: there is no ledger yet: start `tokenweir serve`, or create a key")
    store = LedgerStores.open(settings)
    try:
        with _audited(options, store):
            yield store
    finally:
        store.close()


# The option that names the target of an audited command, first match; the whole command line is in its details.
_TARGETS = ("limit", "grant", "key", "account", "exchange_id", "id", "alias", "name", "model", "month")


@contextmanager
def _audited(options: argparse.Namespace, store: LedgerStores) -> Iterator[None]:
    values = vars(options)
    if options.action is None or values.get("dry_run"):
        yield
        return
    from proxy.ledger.accounts.audit_log import Actor

    target = next((str(values[name]) for name in _TARGETS if values.get(name) is not None), None)
    with store.audit_log.operation(
        Actor(operator(), "cli", socket.gethostname()), options.action, target, {"typed": options.typed}
    ):
        yield


def json_line(fields: dict[str, Any]) -> str:
    """One JSON object on one line."""
    return json.dumps(fields, ensure_ascii=False)
