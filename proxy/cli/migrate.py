"""`tokenweir migrate`: create or upgrade the ledger; with `--from`, move one from SQLite to Postgres.

Invariants: a move only reads its source; after an interruption, or at any time before the target is used, the same
command continues or repeats it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxy.billing.money import usd_text
from proxy.cli.common import WrongUsage, json_line, load_settings, with_config
from proxy.cli.output import add_json
from proxy.cli.progress import Progress

if TYPE_CHECKING:
    from proxy.runtime.machine.moved_ledger import MovedLedger

_SQLITE = "sqlite:"


def add_commands(commands: Any) -> None:
    migrate = with_config(
        commands,
        "migrate",
        "create the ledger, or upgrade it to this version, while servers run; or move one from SQLite to Postgres",
        _migrate,
    )
    move = migrate.add_argument_group("move a ledger", "Stop the proxies first. An interrupted move can be run again.")
    move.add_argument(
        "--from", dest="source", type=_sqlite_file, metavar="sqlite:FILE", help="copy this ledger; it is not changed"
    )
    move.add_argument(
        "--to",
        dest="target",
        type=_postgres_url,
        metavar="postgresql://…",
        help="empty database to copy to (default: `ledger` of the configuration)",
    )
    add_json(move, "print the result as one JSON object")


def _migrate(options: argparse.Namespace) -> None:
    if options.source is not None:
        _move(options)
        return
    if options.target is not None or options.json:
        raise WrongUsage(f"{'--to' if options.target is not None else '--json'}: needs --from")
    from proxy.ledger.schema.migrate import migrate
    from proxy.runtime.machine.data_folder import DataFolder, ledger_url

    settings = load_settings(options.config)
    DataFolder(settings.data_dir).make()
    migrate(ledger_url(settings), lambda line: print(f"tokenweir: {line}", file=sys.stderr, flush=True))
    print("tokenweir: the ledger is up to date")


def _move(options: argparse.Namespace) -> None:
    from proxy.runtime.machine.moved_ledger import move_ledger

    file, url = options.source, _target(options)
    with Progress("preparing", "rows") as shown:

        def progress(what: str, unit: str, done: int, total: int) -> None:
            shown.what, shown.unit, shown.done, shown.total = what, unit, done, total

        def say(line: str) -> None:
            shown.say(f"tokenweir: {line}", file=sys.stderr)

        moved = move_ledger(file, url, progress, say)
    if options.json:
        print(json_line(_json(moved)))
        return
    rows, charge, cost = moved.sums.rows, usd_text(moved.sums.charge_nusd), usd_text(moved.sums.cost_nusd)
    print(
        f"tokenweir: {file} is moved: {sum(rows.values()):,} rows, {rows['ledger_entries']:,} of them entries, "
        f"charge {charge} USD, cost {cost} USD; every row was compared"
    )
    for fault in moved.faults:
        print(f"tokenweir: reconcile: {fault.name}: {fault.differences} differ, in {file} too", file=sys.stderr)
    if moved.unsettled:
        print(
            f"tokenweir: the journals have {moved.unsettled} exchanges that are not settled: keep data_dir, and the "
            "next `tokenweir serve` settles them",
            file=sys.stderr,
        )
    if (file.parent / "pepper").exists():
        print(
            "tokenweir: set key_pepper to the output of `tokenweir keys pepper --config FILE` with the earlier "
            "configuration; another pepper makes every key invalid",
            file=sys.stderr,
        )


def _sqlite_file(text: str) -> Path:
    """The file of `sqlite:FILE` or `sqlite:///FILE`."""
    scheme, name = text[: len(_SQLITE)], text[len(_SQLITE) :]
    if scheme != _SQLITE or not name.strip("/"):
        raise argparse.ArgumentTypeError("must be sqlite:FILE, for example sqlite:./data/ledger.db")
    return Path("/" + name.lstrip("/")) if name.startswith("//") else Path(name)


def _postgres_url(text: str) -> str:
    from proxy.storage.postgres import is_postgres

    if not is_postgres(text):
        raise argparse.ArgumentTypeError("must be postgresql://user:password@host:port/database")
    return text


def _target(options: argparse.Namespace) -> str:
    """The URL of the target. Raises WrongUsage if there is none."""
    if options.target is not None:
        return str(options.target)
    ledger = load_settings(options.config).ledger
    if ledger is None:
        raise WrongUsage(
            "--to: is missing, and the configuration has no `ledger`: give a Postgres database in one of them"
        )
    return ledger.reveal()


def _json(moved: MovedLedger) -> dict[str, Any]:
    sums = moved.sums
    return {
        "rows": dict(sums.rows),
        "charge_usd": usd_text(sums.charge_nusd),
        "cost_usd": usd_text(sums.cost_nusd),
        "faults": {fault.name: fault.differences for fault in moved.faults},
        "unsettled": moved.unsettled,
    }
