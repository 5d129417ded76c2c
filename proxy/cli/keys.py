"""`tokenweir keys …`. Law: a secret is printed once, when it is made."""

from __future__ import annotations

import argparse
import os
import secrets
import time
from pathlib import Path
from typing import Any

from proxy.billing.keys import EXPIRES_DEFAULT, expires_at_from
from proxy.cli.words import json_line, store_of, with_config
from proxy.settings import load


def add_commands(commands: Any) -> None:
    """Make them known."""
    keys = commands.add_parser("keys", help="make, list and revoke keys").add_subparsers(required=True, metavar="WHAT")
    create = with_config(keys, "create", "make a key; its secret is printed once")
    create.add_argument("--alias", required=True, metavar="NAME", help="what people call it; unique among live keys")
    create.add_argument("--model", action="append", metavar="M", help="may ask for this model only; repeatable")
    create.add_argument("--expires", default=EXPIRES_DEFAULT, metavar="90d", help="lifetime, or never (default 90d)")
    create.set_defaults(run=_create)
    with_config(keys, "list", "all keys, as JSON lines").set_defaults(run=_list)
    revoke = with_config(keys, "revoke", "a key counts no more, within a second")
    revoke.add_argument("key", metavar="KEY_ID|ALIAS")
    revoke.set_defaults(run=_revoke)
    words = "what keys are hashed with, for `key_pepper`; without --config a new one"
    pepper = keys.add_parser("pepper", help=words, description=words)
    pepper.add_argument("--config", type=Path, metavar="FILE", help="print the one that is in use there")
    pepper.set_defaults(run=_pepper)


def _create(options: argparse.Namespace) -> int:
    from proxy.keys.secrets import digest, hint, new_secret

    with store_of(options) as store:
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
        print(json_line({"key": secret, **_json(key)}))
    return 0


def _list(options: argparse.Namespace) -> int:
    with store_of(options) as store:
        for key in store.keys.every():
            print(json_line(_json(key)))
    return 0


def _revoke(options: argparse.Namespace) -> int:
    with store_of(options) as store:
        print(json_line(_json(store.keys.revoke(options.key))))
    return 0


def _pepper(options: argparse.Namespace) -> int:
    from proxy.compose.folder import key_pepper
    from proxy.keys.secrets import PEPPER_BYTES

    if options.config is None:
        print(secrets.token_hex(PEPPER_BYTES))
    else:
        print(key_pepper(load(options.config, os.environ)).hex())
    return 0


def _json(key: Any) -> dict[str, Any]:
    from proxy.ledger.reports import iso_utc

    times = {name: getattr(key, name) for name in ("created_at", "expires_at", "revoked_at")}
    return {
        "key_id": key.key_id,
        "alias": key.alias,
        "hint": key.hint,
        "models": None if key.models is None else sorted(key.models),
        **{name: None if moment is None else iso_utc(moment) for name, moment in times.items()},
    }
