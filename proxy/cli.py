"""The command `tokenweir`. Law: words and exit codes only; what is done is done elsewhere.

Exit codes: 0 done, 1 refused or failed (the reason on standard error), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from proxy import __version__
from proxy.billing.keys import EXPIRES_DEFAULT, expires_at_from
from proxy.settings import Settings, SettingsError, from_environment, load

# How often `ledger --follow` looks.
FOLLOW_S = 0.25
# Looking for cycles after every 700 objects, as by default, costs a busy proxy 4 % of its time and finds next to none.
GC_THRESHOLDS = (20_000, 20, 20)


class Failure(Exception):  # noqa: N818  not every failure is an error of ours
    """Printed on standard error; exit code 1."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except BrokenPipeError:  # the reader of our output has gone: it has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Failure, SettingsError, OSError, ValueError) as refusal:
        print(f"tokenweir: {refusal}", file=sys.stderr)
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tokenweir",
        description="Meters LLM streams and turns each into one exact, explained ledger line.",
    )
    parser.add_argument("--version", action="version", version=f"tokenweir {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="see real streams relayed, metered and settled, in under a minute")
    demo.add_argument("--keep", action="store_true", help="go on serving afterwards, until Ctrl-C")
    demo.set_defaults(run=_demo)

    serve = commands.add_parser("serve", help="relay and meter")
    serve.add_argument("--config", type=Path, metavar="FILE", help="without it, providers come from the environment")
    serve.add_argument("--host", help="overrides listen.host")
    serve.add_argument("--port", type=int, help="overrides listen.port; 0: any free one")
    serve.add_argument("--workers", type=int, default=1, metavar="N", help="processes; only 1 in this version")
    serve.set_defaults(run=_serve)

    migrate = _with_config(commands, "migrate", "make the ledger, or bring it to this version")
    migrate.set_defaults(run=_migrate)

    keys = commands.add_parser("keys", help="make, list and revoke keys").add_subparsers(required=True, metavar="WHAT")
    create = _with_config(keys, "create", "make a key; its secret is printed once")
    create.add_argument("--alias", required=True, metavar="NAME", help="what people call it; unique among live keys")
    create.add_argument("--model", action="append", metavar="M", help="may ask for this model only; repeatable")
    create.add_argument("--expires", default=EXPIRES_DEFAULT, metavar="90d", help="lifetime, or never (default 90d)")
    create.set_defaults(run=_keys_create)
    _with_config(keys, "list", "all keys, as JSON lines").set_defaults(run=_keys_list)
    revoke = _with_config(keys, "revoke", "a key counts no more, within a second")
    revoke.add_argument("key", metavar="KEY_ID|ALIAS")
    revoke.set_defaults(run=_keys_revoke)

    ledger = _with_config(commands, "ledger", "the entries, oldest first")
    ledger.add_argument("--json", action="store_true", help="one object per line, every field")
    ledger.add_argument("--key", metavar="ALIAS", help="of this key only")
    ledger.add_argument("--model", metavar="M", help="of this model only")
    ledger.add_argument("--since", metavar="T", help="2026-11-01, 2026-11-01T12:00:00Z, 90m, 24h, 7d")
    ledger.add_argument("--follow", action="store_true", help="go on as entries come")
    ledger.set_defaults(run=_ledger)
    return parser


def _with_config(commands: Any, name: str, help_text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help_text, description=help_text)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE")
    return parser


def _demo(options: argparse.Namespace) -> int:
    from proxy.demo.tour import tour

    return asyncio.run(tour(keep=options.keep))


def _serve(options: argparse.Namespace) -> int:
    if options.workers != 1:
        raise Failure("--workers: this version serves with one process; run it once per data_dir")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    settings = _settings_to_serve(options.config)
    if options.port is not None and not 0 <= options.port <= 65_535:
        raise Failure("--port: must be 0 to 65535")
    listen = replace(
        settings.listen,
        host=options.host or settings.listen.host,
        port=settings.listen.port if options.port is None else options.port,
    )
    return _run(_serve_until_told(replace(settings, listen=listen)))


def _settings_to_serve(config: Path | None) -> Settings:
    if config is not None:
        return load(config, os.environ)
    settings, taken = from_environment(os.environ)
    print("tokenweir: no --config; from the environment:")
    for line in taken:
        print(f"  {line}")
    return settings


def _run(work: Any) -> int:
    """On uvloop where it is installed."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        code: int = runner.run(work)
    return code


async def _serve_until_told(settings: Settings) -> int:
    from proxy.compose import Proxy
    from proxy.pipeline.log import JournalUnavailable
    from proxy.pipeline.progress import ProgressBroken

    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    proxy = Proxy(settings)
    try:
        await proxy.start()
    except (JournalUnavailable, ProgressBroken) as refusal:
        raise Failure(str(refusal)) from refusal
    # What exists now (the price book alone is some hundred thousand objects) lives to the end: the collector need not
    # look at it again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    host = settings.listen.host
    print(f"tokenweir: listening on http://{f'[{host}]' if ':' in host else host}:{proxy.port}", flush=True)
    await told.wait()
    for number in (signal.SIGTERM, signal.SIGINT):  # a second word ends it at once
        loop.remove_signal_handler(number)
    print("tokenweir: stopping; running streams may finish", flush=True)
    await proxy.stop()
    return 0


def _migrate(options: argparse.Namespace) -> int:
    from proxy.compose import Store

    Store(load(options.config, os.environ)).close()
    print("tokenweir: the ledger is up to date")
    return 0


def _keys_create(options: argparse.Namespace) -> int:
    from proxy.compose import Store
    from proxy.keys.secrets import digest, hint, new_secret

    store = Store(load(options.config, os.environ))
    expires_at = expires_at_from(options.expires, time.time())
    secret = new_secret().reveal()
    key = store.keys.create(
        key_id=f"key_{secrets.token_hex(10)}",
        alias=options.alias,
        digest=digest(secret, store.pepper()),
        hint=hint(secret),
        models=options.model,
        expires_at=expires_at,
    )
    print(_json({"key": secret, **_key_json(key)}))
    store.close()
    return 0


def _keys_list(options: argparse.Namespace) -> int:
    from proxy.compose import Store

    store = Store(load(options.config, os.environ))
    for key in store.keys.every():
        print(_json(_key_json(key)))
    store.close()
    return 0


def _keys_revoke(options: argparse.Namespace) -> int:
    from proxy.compose import Store

    store = Store(load(options.config, os.environ))
    print(_json(_key_json(store.keys.revoke(options.key))))
    store.close()
    return 0


def _json(fields: dict[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False)


def _key_json(key: Any) -> dict[str, Any]:
    from proxy.ledger.reports import iso_utc

    times = {name: getattr(key, name) for name in ("created_at", "expires_at", "revoked_at")}
    return {
        "key_id": key.key_id,
        "alias": key.alias,
        "hint": key.hint,
        "models": None if key.models is None else sorted(key.models),
        **{name: None if moment is None else iso_utc(moment) for name, moment in times.items()},
    }


def _ledger(options: argparse.Namespace) -> int:
    from proxy.compose import Store
    from proxy.ledger.reports import EntryFilter, EntryReader, entry_json, since_from
    from proxy.ledger.table_text import HEADER, line

    store = Store(load(options.config, os.environ))
    since = None if options.since is None else since_from(options.since, time.time())
    reader = EntryReader(store.engine, EntryFilter(key_alias=options.key, model=options.model, since=since))
    if not options.json:
        print(HEADER)
    try:
        while True:
            for entry in reader.new_entries():
                print(_json(entry_json(entry)) if options.json else line(entry), flush=options.follow)
            if not options.follow:
                return 0
            time.sleep(FOLLOW_S)
    except KeyboardInterrupt:
        return 0
    finally:
        store.close()
