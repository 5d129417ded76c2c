"""`tokenweir erase`: deletes the mapping of a value id to an end user, session, run or tag.

Invariant: neither the audit log nor the output contains the value.
"""

from __future__ import annotations

import argparse
import socket
from typing import TYPE_CHECKING, Any

from proxy.billing.dimensions import NAMED, TAG
from proxy.billing.keys import AccountKind
from proxy.cli.common import add_yes, confirm, load_settings, store_of, with_config
from proxy.cli.dimension_options import dimension_value, tag_value
from proxy.cli.output import print_object
from proxy.foundation.names import UnknownNameError, counted
from proxy.foundation.users import operator

if TYPE_CHECKING:
    from proxy.ledger.dimensions.erasure import ValueTraces


def add_commands(commands: Any) -> None:
    erase = with_config(
        commands,
        "erase",
        "erase the value of an end user, session, run or tag; entries keep a random id in its place, and their amounts",
        _erase,
        quiet="",
    )
    which = erase.add_mutually_exclusive_group(required=True)
    for name in NAMED:
        option, dest = f"--{name.replace('_', '-')}", f"of_{name}"  # `run` is the command's function
        which.add_argument(option, dest=dest, type=dimension_value, metavar="VALUE", help="as the client sent it")
    which.add_argument("--tag", type=tag_value, metavar="NAME=VALUE", help="a tag: team=red")
    erase.add_argument("--project", metavar="ID|NAME", help="only in this project (default: in all projects)")
    add_yes(erase)


def _erase(options: argparse.Namespace) -> None:
    from proxy.ledger.accounts.audit_log import Actor
    from proxy.ledger.dimensions.erasure import ERASE, read_erasable
    from proxy.ledger.dimensions.values import DimensionValues

    dimension, value = _which(options)
    what = dimension.removeprefix(TAG).replace("_", " ")
    with store_of(options) as store:
        project_id = None
        if options.project is not None:
            project_id = store.accounts.one(options.project, AccountKind.PROJECT).account_id
        found = read_erasable(store.engine, dimension, value, store.pepper(), project_id)
        if found is None:
            raise UnknownNameError(f"no {what} has this value, or it was erased before")
        confirm(options, f"Erase this {what} of {counted(found.traces.exchanges, 'exchange')}? This cannot be undone.")
        by = Actor(operator(), "cli", socket.gethostname())
        with store.audit_log.operation(by, ERASE, ", ".join(found.value_ids), found.audited):
            DimensionValues(store.engine).erase(found.value_ids)
    print_object(options, {**found.audited, **_json(options, found.traces)})


def _which(options: argparse.Namespace) -> tuple[str, str]:
    """The dimension and the value that the options name."""
    if options.tag is not None:
        dimension, value = options.tag
        return dimension, value
    return next((name, given) for name in NAMED if (given := getattr(options, f"of_{name}")) is not None)


def _json(options: argparse.Namespace, traces: ValueTraces) -> dict[str, Any]:
    from proxy.sinks.kinds import receiving_details

    return {
        "exchanges": traces.exchanges,
        "entries_by_month": traces.months,
        "archives": traces.archives,
        "sinks": receiving_details(traces.sinks, load_settings(options.config).sinks),
        "exports": traces.exports,
    }
