"""Options that name a dimension, or filter by dimensions."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from proxy.billing.dimensions import END_USER, RUN, SESSION, TAG, dimension, tag, value_of
from proxy.foundation.names import UnknownNameError
from proxy.foundation.users import operator

if TYPE_CHECKING:
    from proxy.reports.dimensions import DimensionFilter
    from proxy.runtime.machine.ledger_stores import LedgerStores

_OPTIONS = {END_USER: "--end-user", SESSION: "--session", RUN: "--run"}


def dimension_name(text: str) -> str:
    """A dimension: `end_user`, `tag:team`."""
    name = dimension(text)
    if name is None:
        raise argparse.ArgumentTypeError(f"must be {', '.join(_OPTIONS)} or tag:NAME, not {text!r}")
    return name


def dimension_value(text: str) -> str:
    """A value, as a client sends it."""
    value = value_of(text)
    if value is None:
        raise argparse.ArgumentTypeError("is empty, or has characters that cannot be printed")
    return value


def dimension_and_value(text: str) -> tuple[str, str]:
    """A dimension and its value: `end_user=alice`."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"must be DIMENSION=VALUE, such as end_user=alice, not {text!r}")
    return dimension_name(name), dimension_value(value)


def tag_value(text: str) -> tuple[str, str]:
    """A tag and its value: `team=red`."""
    name, equals, value = text.partition("=")
    found = tag(name)
    if found is None or not equals:
        raise argparse.ArgumentTypeError("is not NAME=VALUE, with a name of letters, digits and _.-")
    return found, dimension_value(value)


def add_dimension_filters(parser: argparse.ArgumentParser) -> None:
    """Add the options of a filter by dimensions."""
    for name, option in _OPTIONS.items():
        words = name.replace("_", " ")
        parser.add_argument(
            option,
            dest=_dest(name),
            type=dimension_value,
            metavar="VALUE|ID",
            help=f"only this {words}: the value that clients send, or its value id",
        )
    parser.add_argument(
        "--tag", type=tag_value, action="append", metavar="NAME=VALUE", help="only requests with this tag"
    )


def dimension_filter(store: LedgerStores, options: argparse.Namespace) -> DimensionFilter:
    """The filter of these options. Raises UnknownNameError for a value that no client has sent, LedgerUnavailable."""
    wanted: list[tuple[str, str]] = [
        (name, text) for name in _OPTIONS if (text := getattr(options, _dest(name))) is not None
    ]
    values, found = store.dimension_values(), dict[str, set[str]]()
    for name, text in [*wanted, *(options.tag or ())]:
        ids = values.ids(name, [text])
        if not ids:
            raise UnknownNameError(f"{_shown(name)}: the ledger has no {text!r}")
        found[name] = ids & found.get(name, ids)
    return found


def _dest(name: str) -> str:
    return f"only_{name}"  # `run` is the command's function


def _shown(name: str) -> str:
    return _OPTIONS.get(name, f"--tag {name.removeprefix(TAG)}")


@contextmanager
def values_exported(store: LedgerStores, options: argparse.Namespace) -> Iterator[None]:
    """Work that writes a file with values of dimensions: it is in the audit log, so that `tokenweir erase` can name
    it."""
    from proxy.ledger.accounts.audit_log import Actor
    from proxy.ledger.dimensions.erasure import EXPORT

    by = Actor(operator(), "cli", socket.gethostname())
    with store.audit_log.operation(by, EXPORT, getattr(options, "key", None), {"typed": options.typed}):
        yield
