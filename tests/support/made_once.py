"""Objects that every deployment makes for itself, made once for all tests: they take longer than most tests.

They are the parser of the commands and the statements of a ledger. Neither has a state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from sqlalchemy import Dialect

from proxy import cli
from proxy.billing.entries import LedgerEntry
from proxy.ledger.settling import store
from proxy.ledger.settling.settling import Statements

Setter = Callable[[object, str, object], None]


def share(replace: Setter) -> None:
    """Share them in this process. `replace`: `setattr`, or that of a MonkeyPatch."""
    made: dict[tuple[Any, ...], Statements] = {}

    def statements(dialect: Dialect, content_hash: Callable[[LedgerEntry], str], clock_id: int) -> Statements:
        name = dialect.name, content_hash, clock_id
        if name not in made:
            made[name] = Statements(dialect, content_hash, clock_id)
        return made[name]

    replace(cli, "_parser", cache(cli._parser))
    replace(store, "Statements", statements)
