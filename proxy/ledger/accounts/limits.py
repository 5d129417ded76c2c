"""What keys, projects and organizations have in common in SQL: a name, limits, and one count of changes.

Law: every change of any of them takes the next revision in the same transaction, so whoever knows a revision can ask
for all that changed since. Changes are made one after another, on any number of machines: a revision that is seen has
all earlier ones before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import structs
from sqlalchemy import Connection, func, select

from proxy.billing.limits import BUDGET_NUSD_MAX, RATE_MAX, UNLIMITED, Limits, checked_window
from proxy.billing.money import usd_text
from proxy.ledger.schema.tables import accounts, api_keys

# Fits a table's column and a metric's label.
NAME_CHARS_MAX = 128

LIMITS = frozenset(Limits.__struct_fields__)
_RATES = ("rpm", "tpm", "parallel")


def checked_name(field: str, text: str) -> str:
    """`text`, if it can be the name that `field` says. Raises ValueError."""
    if not text.strip() or len(text) > NAME_CHARS_MAX or not text.isprintable():
        raise ValueError(f"{field}: 1 to {NAME_CHARS_MAX} printable characters, not {text!r}")
    return text


def checked_limits(limits: Limits) -> Limits:
    """`limits`, if each can be. Raises ValueError, naming the field."""
    if limits.budget_usd is not None and not 0 <= limits.budget_usd <= BUDGET_NUSD_MAX:
        raise ValueError(f"budget_usd: 0 to {usd_text(BUDGET_NUSD_MAX)} USD, not {usd_text(limits.budget_usd)}")
    try:
        checked_window(limits.budget_window)
    except ValueError as wrong:
        raise ValueError(f"budget_window: {wrong}") from None
    for name in _RATES:
        rate = getattr(limits, name)
        if rate is not None and not 1 <= rate <= RATE_MAX:
            raise ValueError(f"{name}: 1 to {RATE_MAX}, not {rate}")
    return limits


def with_changes(limits: Limits, changes: Mapping[str, Any]) -> Limits:
    """`limits` with those of the changes that are fields of limits, or `limits` itself. Raises ValueError."""
    whole: Limits = changes.get("limits", limits)
    return checked_limits(structs.replace(whole, **{name: changes[name] for name in LIMITS & changes.keys()}))


def limits_row(limits: Limits) -> dict[str, Any] | None:
    """As they are kept: only what is set; None: nothing is. Money: nUSD."""
    unset = structs.asdict(UNLIMITED)
    return {name: value for name, value in structs.asdict(limits).items() if value != unset[name]} or None


def limits_of(row: Mapping[str, Any] | None) -> Limits:
    """The limits that are kept so."""
    return UNLIMITED if row is None else msgspec.convert(row, Limits)


def next_revision(connection: Connection) -> int:
    """The next one. The transaction has `Lock.KEYS`."""
    found = (connection.execute(select(func.max(table.c.revision))).scalar() for table in (accounts, api_keys))
    return 1 + max(int(highest or 0) for highest in found)
