"""`tokenweir grants …`: credit that begins, expires and recurs. Invariant: each command prints what it wrote."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from proxy.billing.limits import BUDGET_NUSD_MAX
from proxy.cli.common import (
    add_owner_options,
    add_yes,
    command_for_one,
    confirm,
    owner_of,
    store_of,
    with_commands,
    with_config,
)
from proxy.cli.output import add_list_options, print_list, print_object
from proxy.cli.values import NAME, Usd, Whole, duration, future, time_zone
from proxy.foundation.ids import new_id

if TYPE_CHECKING:
    from proxy.billing.grants import Grant


def add_commands(commands: Any) -> None:
    from proxy.billing.grants import PRIORITY_DEFAULT, PRIORITY_MAX, RECURRENCES

    grants = with_commands(commands, "grants", "give credit that expires or recurs, such as a trial")
    add = with_config(
        grants, "add", "give credit to a key or an account; a second grant with the same name is refused", _add,
        action="grant.add", quiet="id of the grant",
    )  # fmt: skip
    add.add_argument("name", type=NAME, metavar="NAME", help="name of the grant, shown on statements")
    add_owner_options(add)
    words = "amount; with --recurs, of each grant"
    add.add_argument("--usd", dest="nusd", type=Usd(1, BUDGET_NUSD_MAX), required=True, metavar="USD", help=words)
    words = "beginning: a time, or a duration from now (default: now)"
    add.add_argument("--begins", type=future, metavar="DATE|7d", help=words)
    end = add.add_mutually_exclusive_group()
    end.add_argument("--expires", type=future, metavar="DATE|14d", help="end: a time, or a duration from now")
    end.add_argument(
        "--lasts",
        dest="lasts_s",
        type=duration,
        metavar="14d",
        help="how long each grant lasts (default: for ever; with --recurs until the next one begins)",
    )
    add.add_argument("--recurs", choices=RECURRENCES, help="grant the amount again each day, week or month")
    words = "time zone of --recurs: Europe/Berlin (default: UTC)"
    add.add_argument("--time-zone", type=time_zone, metavar="ZONE", help=words)
    add.add_argument(
        "--priority",
        type=Whole(0, PRIORITY_MAX),
        default=PRIORITY_DEFAULT,
        metavar="N",
        help=f"0 to {PRIORITY_MAX} (default: {PRIORITY_DEFAULT}): the grant with the lowest number is used first; of "
        "several, the one that expires first, then the oldest",
    )
    listed = with_config(grants, "list", "print grants, with what is left of each", _list)
    owner = listed.add_mutually_exclusive_group()
    owner.add_argument("--key", metavar="KEY_ID|ALIAS", help="only the grants of this key")
    owner.add_argument("--account", metavar="ID|NAME", help="only the grants of this project or organization")
    listed.add_argument("--all", action="store_true", help="include grants that have ended")
    add_list_options(listed, quiet="id")
    revoke = command_for_one(
        grants, "grant", "revoke", "end a grant and its recurrence; the rest is taken back", _revoke
    )
    add_yes(revoke)


def _add(options: argparse.Namespace) -> None:
    from proxy.billing.grants import new_grant
    from proxy.reports.grants import grant_json

    with store_of(options) as store:
        scope_id, _, scope_name = owner_of(store, options)

        def make(now: float) -> Grant:
            return new_grant(
                grant_id=new_id("grant"), scope_id=scope_id, scope_name=scope_name, name=options.name,
                nusd=options.nusd, created_at=now, begins_at=options.begins, expires_at=options.expires,
                lasts_s=options.lasts_s, priority=options.priority, recurs=options.recurs,
                time_zone=options.time_zone,
            )  # fmt: skip

        print_object(options, grant_json(store.grants.add(make)), "grant_id")


def _list(options: argparse.Namespace) -> None:
    from proxy.cli.list_tables import GRANTS
    from proxy.reports.grants import grant_json

    with store_of(options) as store:
        chosen = options.key is not None or options.account is not None
        states = store.grants.every(*((owner_of(store, options)[0],) if chosen else ()))
        now = time.time()
        shown = [grant_json(one) for one in states if options.all or one.left or one.grant.ends_at > now]
        print_list(options, GRANTS, shown, "grant_id")


def _revoke(options: argparse.Namespace) -> None:
    from proxy.reports.grants import grant_json

    with store_of(options) as store:
        state = store.grants.one(options.grant)
        confirm(options, f"Revoke the grant {state.grant.name!r} of {state.grant.scope_name}?")
        print_object(options, grant_json(store.grants.revoke(options.grant)))
