"""`tokenweir limits …`: limits by rule, in addition to those of keys and accounts. Invariant: each command prints the
rule that it wrote."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from proxy.billing.dimensions import END_USER, hashed
from proxy.billing.limits import Limits
from proxy.cli.common import (
    WrongUsage,
    add_yes,
    command_for_one,
    confirm,
    store_of,
    with_commands,
    with_config,
)
from proxy.cli.dimension_options import dimension_and_value, dimension_name
from proxy.cli.limit_options import add_limits, limit_changes, limits_json
from proxy.cli.output import add_list_options, print_list, print_object
from proxy.cli.values import NAME, NONE
from proxy.foundation.ids import new_id
from proxy.foundation.times import iso_utc

if TYPE_CHECKING:
    from proxy.billing.limit_rules import LimitRule
    from proxy.ledger.limit_list import ListedLimit
    from proxy.runtime.machine.ledger_stores import LedgerStores


def add_commands(commands: Any) -> None:
    limits = with_commands(commands, "limits", "limit each end user, session, run or tag, or a part of the requests")
    create = with_config(
        limits, "create", "create a limit; takes effect within a second", _create, action="limit.create", quiet="id"
    )
    create.add_argument("limit", type=NAME, metavar="NAME")
    scope = create.add_mutually_exclusive_group()
    for level in ("key", "project", "organization"):
        scope.add_argument(f"--{level}", metavar="ID|NAME", help=f"only requests of this {level} (default: all)")
    create.add_argument(
        "--provider",
        action="append",
        default=[],
        metavar="NAME",
        help="count only requests that this provider of the configuration serves; repeatable; the --budget-window must "
        "then be at most a day",
    )
    create.add_argument(
        "--split-by",
        type=dimension_name,
        action="append",
        default=[],
        metavar="DIMENSION",
        help="each value has its own limits: end_user, session, run, or a tag such as tag:team; repeatable",
    )
    create.add_argument(
        "--only",
        type=dimension_and_value,
        action="append",
        default=[],
        metavar="DIMENSION=VALUE",
        help="only requests with this value, such as end_user=alice; needs --project or --key; repeatable",
    )
    _add_options(create)
    update = command_for_one(limits, "limit", "update", "change a limit; takes effect within a second", _update)
    update.add_argument("--name", type=NAME, metavar="NAME", default=argparse.SUPPRESS, help="new name")
    _add_options(update)
    delete = command_for_one(limits, "limit", "delete", "delete a limit; it no longer applies to new requests", _delete)
    add_yes(delete)
    listed = with_config(limits, "list", "print limits; by default those by rule", _list)
    which = listed.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="the limits of keys, projects and organizations, too")
    which.add_argument("--key", metavar="ID|ALIAS", help="the limits that requests of this key can count against")
    add_list_options(listed, quiet="id")


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `create` and `update` share."""
    parser.add_argument(
        "--model",
        action="append",
        metavar="MODEL",
        default=argparse.SUPPRESS,
        help="only requests for this model, or for models whose names begin so: 'gpt-4*' (in quotes, because shells "
        "replace a *); repeatable; none: all",
    )
    parser.add_argument(
        "--required",
        action=argparse.BooleanOptionalAction,
        default=argparse.SUPPRESS,
        help="refuse requests that lack a dimension of --split-by; by default they are not counted here",
    )
    parser.add_argument(
        "--fallback-model",
        type=NAME,
        metavar="MODEL",
        default=argparse.SUPPRESS,
        help="model, not one of --model, that answers the requests that this limit refuses; none: they are refused",
    )
    add_limits(parser, of_rule=True)


def _create(options: argparse.Namespace) -> None:
    # The audit log is permanent, and a person's id can be erased.
    values = {f"{name}={value}": f"{name}=…" for name, value in options.only}
    options.typed = [values.get(word.removeprefix("--only="), word) for word in options.typed]
    if options.only and options.project is None and options.key is None:
        raise WrongUsage("--only: needs --project or --key: a value belongs to one project")
    with store_of(options) as store:
        scope_id, project_id = _scope(store, options)
        rule = store.rules.create(
            rule_id=new_id("rule"),
            name=options.limit,
            scope_id=scope_id,
            values=_value_ids(store, options, project_id or ""),
            providers=options.provider,
            split_by=options.split_by,
            limits=Limits(**limit_changes(options)),
            **_changes(options),
        )
        print_object(options, _shown(store, rule), "rule_id")


def _scope(store: LedgerStores, options: argparse.Namespace) -> tuple[str | None, str | None]:
    """The ids of the chosen key or account, and of its project."""
    from proxy.billing.keys import AccountKind

    if options.key is not None:
        key = store.keys.one(options.key)
        return key.key_id, key.project_id
    if options.project is not None:
        project_id = store.accounts.one(options.project, AccountKind.PROJECT).account_id
        return project_id, project_id
    if options.organization is not None:
        return store.accounts.one(options.organization, AccountKind.ORGANIZATION).account_id, None
    return None, None


def _value_ids(store: LedgerStores, options: argparse.Namespace, project_id: str) -> dict[str, str]:
    from proxy.ledger.dimensions.values import DimensionValues

    pepper = store.end_user_pepper()
    values = {
        name: hashed(value, pepper) if pepper is not None and name == END_USER else value
        for name, value in options.only
    }
    return DimensionValues(store.engine).ids_of(project_id, values)


def _changes(options: argparse.Namespace) -> dict[str, Any]:
    given = vars(options)
    changes = {"required": given["required"]} if "required" in given else {}
    if "model" in given:
        changes["models"] = () if given["model"] == [NONE] else tuple(given["model"])
    if "fallback_model" in given:
        changes["fallback_model"] = None if given["fallback_model"] == NONE else given["fallback_model"]
    return changes


def _update(options: argparse.Namespace) -> None:
    changes = limit_changes(options) | _changes(options) | ({"name": options.name} if "name" in options else {})
    with store_of(options) as store:
        print_object(options, _shown(store, store.rules.update(options.limit, **changes)))


def _delete(options: argparse.Namespace) -> None:
    with store_of(options) as store:
        rule = store.rules.one(options.limit)  # what does not exist is not asked about
        confirm(options, f"Delete the limit {rule.name!r}?")
        print_object(options, _shown(store, store.rules.delete(rule.rule_id)))


def _list(options: argparse.Namespace) -> None:
    from proxy.cli.list_tables import RULES

    with store_of(options) as store:
        rows = ({**_shown(store, one.rule), "change_with": _change_with(one)} for one in _listed(store, options))
        print_list(options, RULES, rows, "rule_id")


def _listed(store: LedgerStores, options: argparse.Namespace) -> Iterable[ListedLimit]:
    if options.key is not None:
        return store.limits.of_key(store.keys.one(options.key))
    return store.limits.every() if options.all else store.limits.of_rules()


def _change_with(listed: ListedLimit) -> str:
    """The command that changes the limit."""
    group = {"rule": "limits", "key": "keys"}.get(listed.kind, "accounts")
    name = listed.owner if listed.kind in ("rule", "key") else listed.rule.rule_id
    return f"tokenweir {group} update {shlex.quote(name)}"


def _shown(store: LedgerStores, rule: LimitRule) -> dict[str, Any]:
    """The printed form of a rule."""
    times: Mapping[str, float | None] = {"created_at": rule.created_at, "deleted_at": rule.deleted_at}
    return {
        "rule_id": rule.rule_id,
        "name": rule.name,
        "scope_id": rule.scope_id,
        "models": list(rule.models) or None,
        "providers": list(rule.providers) or None,
        "only": _names(store, rule.values),
        "split_by": list(rule.split_by) or None,
        "required": rule.required,
        "fallback_model": rule.fallback_model,
        "limits": limits_json(rule.limits),
        **{name: None if at is None else iso_utc(at) for name, at in times.items()},
    }


def _names(store: LedgerStores, values: Mapping[str, str]) -> dict[str, str] | None:
    """Dimension → value; the value id of an erased one."""
    from proxy.ledger.dimensions.values import DimensionValues

    if not values:
        return None
    names = DimensionValues(store.engine).names(set(values.values()))
    return {name: names.get(value_id, value_id) for name, value_id in values.items()}
