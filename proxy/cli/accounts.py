"""`tokenweir accounts …`: organizations and their projects. Invariant: each command prints the account that it
wrote."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from proxy.billing.keys import Account
from proxy.billing.limits import Limits
from proxy.cli.common import command_for_one, store_of, with_commands, with_config
from proxy.cli.limit_options import account_json, add_limits, limit_changes, paid_json
from proxy.cli.output import add_list_options, print_list, print_object
from proxy.cli.values import NAME
from proxy.foundation.ids import new_id

if TYPE_CHECKING:
    from proxy.ledger.accounts.account_store import AccountStore


def add_commands(commands: Any) -> None:
    help_text = "manage organizations and projects, and the limits that their keys share"
    accounts = with_commands(commands, "accounts", help_text)
    organization = with_config(
        accounts,
        "create-organization",
        "create an organization",
        _create_organization,
        action="account.create-organization",
        quiet="id",
    )
    organization.add_argument("name", type=NAME, metavar="NAME")
    add_limits(organization)
    project = with_config(
        accounts,
        "create-project",
        "create a project in an organization",
        _create_project,
        action="account.create-project",
        quiet="id",
    )
    project.add_argument("name", type=NAME, metavar="NAME")
    project.add_argument("--organization", required=True, metavar="ID|NAME", help="organization of the new project")
    add_limits(project)
    update = command_for_one(accounts, "account", "update", "change an account; takes effect within a second", _update)
    update.add_argument("--name", type=NAME, metavar="NAME", default=argparse.SUPPRESS, help="new name")
    add_limits(update)
    command_for_one(
        accounts, "account", "block", "reject all keys of an account until it is unblocked", partial(_apply, "block")
    )
    command_for_one(accounts, "account", "unblock", "accept the keys of an account again", partial(_apply, "unblock"))
    command_for_one(
        accounts, "account", "info", "show an account, its organization, its limits and its spend", _info, audited=False
    )
    listed = with_config(accounts, "list", "print all accounts", _list)
    add_list_options(listed, quiet="id")


@contextmanager
def _accounts(options: argparse.Namespace) -> Iterator[AccountStore]:
    with store_of(options) as store:
        yield store.accounts


def _create_organization(options: argparse.Namespace) -> None:
    limits = Limits(**limit_changes(options))
    with _accounts(options) as accounts:
        account = accounts.create_organization(account_id=new_id("org"), name=options.name, limits=limits)
        print_object(options, account_json(account), "account_id")


def _create_project(options: argparse.Namespace) -> None:
    limits = Limits(**limit_changes(options))
    with _accounts(options) as accounts:
        account = accounts.create_project(
            account_id=new_id("proj"), name=options.name, organization=options.organization, limits=limits
        )
        print_object(options, account_json(account), "account_id")


def _update(options: argparse.Namespace) -> None:
    changes = limit_changes(options) | ({"name": options.name} if "name" in options else {})
    with _accounts(options) as accounts:
        print_object(options, account_json(accounts.update(options.account, **changes)))


def _apply(operation: str, options: argparse.Namespace) -> None:
    """Call this method of the account store."""
    with _accounts(options) as accounts:
        change: Callable[[str], Account] = getattr(accounts, operation)
        print_object(options, account_json(change(options.account)))


def _info(options: argparse.Namespace) -> None:
    from proxy.reports.totals import read_paid

    with store_of(options) as store:
        account = store.accounts.one(options.account)
        above = None if account.parent_id is None else store.accounts.one(account.parent_id)
        levels = [one for one in (account, above) if one is not None]
        paid = read_paid(store.engine, [level.account_id for level in levels])
        shown = [{**account_json(level), "balance": paid_json(paid[level.account_id])} for level in levels]
    print_object(options, {**shown[0], **({"organization": shown[1]} if above is not None else {})})


def _list(options: argparse.Namespace) -> None:
    from proxy.cli.list_tables import ACCOUNTS

    with _accounts(options) as accounts:
        print_list(options, ACCOUNTS, map(account_json, accounts.every()), "account_id")
