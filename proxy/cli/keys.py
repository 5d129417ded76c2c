"""`tokenweir keys …`: API keys. Invariant: a secret is printed once, when it is created."""

from __future__ import annotations

import argparse
import os
import secrets
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxy.billing.dimensions import NAMED, PRESETS, VALUE_CHARS_MAX
from proxy.billing.keys import EXPIRES_DEFAULT, GRACE_DEFAULT, AccountKind, ApiKey, expires_at_from
from proxy.billing.limits import BUDGET_NUSD_MAX, Limits, OnExhausted, OnStoreOutage
from proxy.billing.money import usd_text
from proxy.cli.common import (
    Failure,
    WrongUsage,
    add_command,
    add_yes,
    command_for_one,
    confirm,
    load_settings,
    store_of,
    with_commands,
    with_config,
)
from proxy.cli.limit_options import account_json, add_limits, key_json, limit_changes, paid_json
from proxy.cli.output import add_list_options, print_list, print_object
from proxy.cli.values import NAME, NONE, TAG, Printable, Usd, byok_terms, dimension_value, duration_or_now, lifetime
from proxy.foundation.ids import new_id
from proxy.settings.variables import variable

if TYPE_CHECKING:
    from sqlalchemy import Engine

DEFAULT = "default"
KEY_VARIABLE = "TOKENWEIR_KEY"


def add_commands(commands: Any) -> None:
    keys = with_commands(commands, "keys", "create, list and change API keys")
    create = with_config(
        keys, "create", "create a key; its secret is printed once", _create, action="key.create", quiet="secret"
    )
    create.add_argument(
        "--alias", type=NAME, required=True, metavar="NAME", help="display name; unique among usable keys"
    )
    create.add_argument(
        "--project", metavar="ID|NAME", help="project of the key; its limits apply to all its keys (default: default)"
    )
    help_of_expires = "lifetime, a date (2027-01-31, at its beginning in UTC), or never (default 90d)"
    create.add_argument("--expires", type=lifetime, default=EXPIRES_DEFAULT, metavar="90d", help=help_of_expires)
    _add_narrowable(create)
    _add_options(create)
    listed = with_config(keys, "list", "print all keys", _list)
    add_list_options(listed, quiet="id")
    update = command_for_one(keys, "key", "update", "change a key; takes effect within a second", _update)
    update.add_argument("--alias", type=NAME, metavar="NAME", default=argparse.SUPPRESS, help="new display name")
    update.add_argument(
        "--expires",
        type=lifetime,
        metavar="90d",
        default=argparse.SUPPRESS,
        help="new lifetime from now, a date, or never",
    )
    _add_options(update)
    rotate = command_for_one(
        keys, "key", "rotate", "give a key a new secret, which is printed once", _rotate, quiet="secret"
    )
    grace = f"how long the old secret stays valid, or now (default {GRACE_DEFAULT})"
    _add_narrowable(rotate)
    rotate.add_argument("--grace", type=duration_or_now, default=GRACE_DEFAULT, metavar="24h", help=grace)
    command_for_one(keys, "key", "block", "reject a key until it is unblocked", partial(_apply, "block"))
    command_for_one(keys, "key", "unblock", "accept a blocked key again", partial(_apply, "unblock"))
    revoke = command_for_one(keys, "key", "revoke", "revoke a key permanently; takes effect within a second", _revoke)
    add_yes(revoke)
    command_for_one(
        keys, "key", "info", "show a key, its project and its organization, with limits and spend", _info, audited=False
    )
    _add_narrow(keys)
    help_text = "print the secret that keys are hashed with (`key_pepper`); without --config, generate one"
    pepper = add_command(keys, "pepper", help_text, _pepper)
    pepper.add_argument("--config", type=Path, metavar="FILE", help="print the pepper of this configuration")


def _add_narrow(keys: Any) -> None:
    words = "make a key that may do less than the one in the variable TOKENWEIR_KEY, without the proxy"
    narrow = add_command(keys, "narrow", words, _narrow)
    narrow.add_argument("--model", action="append", metavar="MODEL", help="allow only this model; repeatable")
    words = "the most that the new key and all keys made from it may spend together: 2.50"
    narrow.add_argument("--usd", type=Usd(0, BUDGET_NUSD_MAX), metavar="USD", help=words)
    words = "lifetime of the new key, or the first day (UTC) on which it is not valid: 2027-01-31"
    narrow.add_argument("--expires", type=lifetime, metavar="1h", help=words)
    for name in NAMED:
        words = f"all requests with the new key count for this {name.replace('_', ' ')}"
        option = f"--{name.replace('_', '-')}"
        dest = f"dimension_{name}"  # `run` is the command
        narrow.add_argument(option, type=Printable(VALUE_CHARS_MAX), dest=dest, metavar="NAME", help=words)
    words = "do not allow files, batches, stored responses and charges of exchanges: those of the parent are included"
    narrow.add_argument("--no-stored", action="store_true", help=words)
    words = "name that makes it another key, with a cap of its own, than those with the same options (default: random)"
    narrow.add_argument("--name", metavar="NAME", help=words)
    narrow.add_argument("--quiet", action="store_true", help="print only the key, as always")


def _add_narrowable(parser: argparse.ArgumentParser) -> None:
    words = "make a secret from which its holder can make narrower keys, with `tokenweir keys narrow`"
    parser.add_argument("--narrowable", action="store_true", help=words)


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `create` and `update` share."""
    unset: dict[str, Any] = {"default": argparse.SUPPRESS}
    parser.add_argument("--model", action="append", metavar="MODEL", help="allow only this model; repeatable", **unset)
    add_limits(parser)
    words = "if the budget is exhausted during a stream: finish the stream (the default), or cut it off"
    parser.add_argument("--on-exhausted", choices=[one.value for one in OnExhausted], help=words, **unset)
    words = (
        "while the budget store is unavailable: reject or admit requests; none: the default (budgets.on_store_outage "
        "for keys with a limit on money, else admit)"
    )
    parser.add_argument("--on-store-outage", choices=[*(one.value for one in OnStoreOutage), NONE], help=words, **unset)
    parser.add_argument(
        "--tag", type=TAG, action="append", metavar="TAG", help="label for reports; repeatable", **unset
    )
    words = (
        f"which fields of requests name end users, sessions, runs and tags: {', '.join(PRESETS)}; repeatable; none: no "
        "field; default: as configured"
    )
    parser.add_argument(
        "--dimension-source", choices=[*PRESETS, NONE, DEFAULT], action="append", metavar="PRESET", help=words, **unset
    )
    words = (
        "clients of this key send their own provider credential, and are billed by these terms: free, a share of "
        "the list price (5%%), or a fee for each request (0.002usd/request); none: the operator's credential is used"
    )
    parser.add_argument("--byok", type=byok_terms, metavar="TERMS", help=words, **unset)
    words = "a fixed dimension of all requests: end_user=alice, tag:team=red; repeatable"
    parser.add_argument("--dimension", type=dimension_value, action="append", metavar="NAME=VALUE", help=words, **unset)


def _create(options: argparse.Namespace) -> None:
    from proxy.keys.secrets import new_hashed

    limits = Limits(**limit_changes(options))
    with store_of(options) as store:
        in_project = {}
        if options.project is not None:
            in_project = {"project_id": store.accounts.one(options.project, AccountKind.PROJECT).account_id}
        fields = {"models": None, **_key_changes(options), **in_project}
        key_id = new_id("key")
        secret, digest, hint = new_hashed(store.pepper(), key_id if options.narrowable else None)
        key = store.keys.create(
            key_id=key_id,
            alias=options.alias,
            digest=digest,
            hint=hint,
            expires_at=expires_at_from(options.expires, time.time(), store.key_lifetime_max_s),
            limits=limits,
            **fields,
        )
        print_object(options, {"key": secret, **key_json(key)}, "key")


def _list(options: argparse.Namespace) -> None:
    from proxy.cli.list_tables import KEYS

    with store_of(options) as store:
        print_list(options, KEYS, map(key_json, store.keys.every()), "key_id")


def _update(options: argparse.Namespace) -> None:
    changes = limit_changes(options) | _key_changes(options)
    if "alias" in options:
        changes["alias"] = options.alias
    with store_of(options) as store:
        if "expires" in options:
            changes["expires_at"] = expires_at_from(options.expires, time.time(), store.key_lifetime_max_s)
        print_object(options, key_json(store.keys.update(options.key, **changes)))


def _rotate(options: argparse.Namespace) -> None:
    from proxy.keys.secrets import new_hashed

    with store_of(options) as store:
        key_id = store.keys.one(options.key).key_id
        secret, digest, hint = new_hashed(store.pepper(), key_id if options.narrowable else None)
        until = time.time() + options.grace
        key = store.keys.rotate(key_id, digest=digest, hint=hint, old_until=until)
        print_object(options, {"key": secret, **key_json(key)}, "key")


def _narrow(options: argparse.Namespace) -> None:
    from proxy.foundation.times import iso_utc
    from proxy.keys.narrowing import narrowed_text

    caveats = {
        "models": ",".join(options.model) if options.model else None,
        "expires": iso_utc(at) if (at := _end(options.expires)) is not None else None,
        "usd": None if options.usd is None else usd_text(options.usd),
        "stored": NONE if options.no_stored else None,
        **{name: getattr(options, f"dimension_{name}") for name in NAMED},
    }
    given = [f"{name}={value}" for name, value in caveats.items() if value is not None]
    if not given and options.name is None:
        raise WrongUsage("an option that restricts the key is required: see tokenweir keys narrow --help")
    key = variable(os.environ, KEY_VARIABLE)
    if not key:
        raise Failure(f"set the environment variable {KEY_VARIABLE} to the key to narrow")
    name = options.name or secrets.token_hex(8)
    print(narrowed_text(key, [f"name={name}", *given]))  # behind `usd`, a name gives no other cap


def _end(text: str | None) -> float | None:
    return None if text is None else expires_at_from(text, time.time())


def _apply(operation: str, options: argparse.Namespace) -> None:
    """Call this method of the key store."""
    with store_of(options) as store:
        change: Callable[[str], ApiKey] = getattr(store.keys, operation)
        print_object(options, key_json(change(options.key)))


def _revoke(options: argparse.Namespace) -> None:
    with store_of(options) as store:
        key = store.keys.one(options.key)  # what does not exist is not asked about
        confirm(options, f"Revoke the key {options.key}? This cannot be undone.")
        print_object(options, key_json(store.keys.revoke(key.key_id)))


def _info(options: argparse.Namespace) -> None:
    from proxy.reports.totals import read_paid

    with store_of(options) as store:
        key = store.keys.one(options.key)
        project = store.accounts.one(key.project_id)
        assert project.parent_id is not None
        levels = {"project": project, "organization": store.accounts.one(project.parent_id)}
        paid = read_paid(store.engine, [key.key_id, *(level.account_id for level in levels.values())])
        above = {
            name: {**account_json(one), "balance": paid_json(paid[one.account_id])} for name, one in levels.items()
        }
        budget = _budget(store.engine, key)
        print_object(options, {**key_json(key), **budget, "balance": paid_json(paid[key.key_id]), **above})


def _budget(engine: Engine, key: ApiKey) -> dict[str, Any]:
    """Budget, spend and remainder of the key in its current window, by the ledger; empty: the key has no budget."""
    from proxy.ledger.settling.spend import sums

    limits = key.limits
    if limits.budget_nusd is None:
        return {}
    since = limits.window_start(key.created_at, time.time())
    [spent] = sums(engine, [(key.key_id, since)])
    left = usd_text(limits.budget_nusd - spent.amount)
    return {
        "budget": {"budget_usd": usd_text(limits.budget_nusd), "spent_usd": usd_text(spent.amount), "left_usd": left}
    }


def _pepper(options: argparse.Namespace) -> None:
    from proxy.keys.secrets import PEPPER_BYTES
    from proxy.runtime.machine.data_folder import key_pepper

    if options.config is None:
        print(secrets.token_hex(PEPPER_BYTES))
    else:
        print(key_pepper(load_settings(options.config)).hex())


def _key_changes(options: argparse.Namespace) -> dict[str, Any]:
    """The given options of a key itself, by field name."""
    given, changes = vars(options), dict[str, Any]()
    if "model" in given:
        changes["models"] = None if given["model"] == [NONE] else given["model"]
    if "on_exhausted" in given:
        changes["on_exhausted"] = OnExhausted(given["on_exhausted"])
    if "on_store_outage" in given:
        changes["on_store_outage"] = (
            None if given["on_store_outage"] == NONE else OnStoreOutage(given["on_store_outage"])
        )
    if "byok" in given:
        changes["byok"] = given["byok"]
    if "tag" in given:
        changes["tags"] = () if given["tag"] == [NONE] else given["tag"]
    if "dimension_source" in given:
        words = {(NONE,): (), (DEFAULT,): None}
        changes["dimension_sources"] = words.get(tuple(given["dimension_source"]), given["dimension_source"])
    if "dimension" in given:
        changes["dimensions"] = {} if given["dimension"] == [(NONE, "")] else dict(given["dimension"])
    return changes
