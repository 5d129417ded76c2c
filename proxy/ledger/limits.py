"""The fields that keys, projects and organizations share in SQL: a name, limits and a revision.

Invariants: every change takes the next revision in its own transaction; changes are serialized across machines, so a
reader that has a revision has all earlier ones and can read the changes since.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import structs
from sqlalchemy import Connection, func, select

from proxy.billing.limits import (
    BUDGET_NUSD_MAX,
    QUOTA_MAX,
    RATE_MAX,
    THRESHOLD_MAX,
    THRESHOLDS_MAX,
    UNLIMITED,
    Limits,
)
from proxy.billing.money import usd_text
from proxy.billing.windows import CALENDAR, checked_time_zone, checked_window
from proxy.ledger.schema.account_tables import accounts, api_keys

# Fits a column of a report and a label of a metric.
NAME_CHARS_MAX = 128

LIMITS = frozenset(Limits.__struct_fields__)
_RATES = ("rpm", "tpm", "parallel")


def checked_name(field: str, text: str) -> str:
    """`text`, if it is a valid name. Raises ValueError that names `field`."""
    if not text.strip() or len(text) > NAME_CHARS_MAX or not text.isprintable():
        raise ValueError(f"{field}: must be 1 to {NAME_CHARS_MAX} printable characters, not {text!r}")
    return text


def checked_limits(limits: Limits) -> Limits:
    """`limits` of a key, an account or a rule, if each is valid. Raises ValueError that names the invalid field."""
    if limits.budget_nusd is not None and not 0 <= limits.budget_nusd <= BUDGET_NUSD_MAX:
        raise ValueError(
            f"budget_usd: must be 0 to {usd_text(BUDGET_NUSD_MAX)} USD, not {usd_text(limits.budget_nusd)}"
        )
    _check_window(limits)
    _check_alerts(limits)
    if limits.raised is not None:
        if limits.budget_nusd is None:
            raise ValueError("raised: needs a budget")
        if not 0 < limits.raised.nusd <= BUDGET_NUSD_MAX:
            raise ValueError(f"raised: must be more than 0, at most {usd_text(BUDGET_NUSD_MAX)} USD")
    for measure, most in limits.quotas.items():
        if not 1 <= most <= QUOTA_MAX:
            raise ValueError(f"quotas: {measure} must be 1 to {QUOTA_MAX}, not {most}")
    for name in _RATES:
        rate = getattr(limits, name)
        if rate is not None and not 1 <= rate <= RATE_MAX:
            raise ValueError(f"{name}: must be 1 to {RATE_MAX}, not {rate}")
    return limits


def _check_window(limits: Limits) -> None:
    try:
        checked_window(limits.budget_window)
    except ValueError as wrong:
        raise ValueError(f"budget_window: {wrong}") from None
    if limits.time_zone is not None:
        try:
            checked_time_zone(limits.time_zone)
        except ValueError as wrong:
            raise ValueError(f"time_zone: {wrong}") from None
        if limits.budget_window not in CALENDAR:
            raise ValueError(f"time_zone: is for windows by the calendar, as calendar_day, not {limits.budget_window}")


def _check_alerts(limits: Limits) -> None:
    if limits.thresholds and not all(1 <= one <= THRESHOLD_MAX for one in limits.thresholds):
        raise ValueError(f"thresholds: must be 1 to {THRESHOLD_MAX} percent, not {list(limits.thresholds)}")
    if len(limits.thresholds) > THRESHOLDS_MAX:
        raise ValueError(f"thresholds: must be at most {THRESHOLDS_MAX}, not {len(limits.thresholds)}")


def with_changes(limits: Limits, changes: Mapping[str, Any]) -> Limits:
    """`limits` with the changes that are limits, or a whole new `limits`. Quotas that are not named stay. Raises
    ValueError."""
    whole: Limits = changes.get("limits", limits)
    new = {name: changes[name] for name in LIMITS & changes.keys()}
    if "quotas" in new:
        new["quotas"] = {**whole.quotas, **new["quotas"]}
    return checked_limits(structs.replace(whole, **new))


def checked_of_scope(limits: Limits) -> Limits:
    """`limits` of a key or an account, if each is valid. Raises ValueError that names the invalid field."""
    if limits.quotas or limits.alert_only:
        raise ValueError("quotas, alert_only: are only for limits by rule, which can be for one key or account")
    return checked_limits(limits)


def limits_row(limits: Limits) -> dict[str, Any] | None:
    """The stored form: only the limits that are set; None if there are none. Money: nUSD."""
    unset = msgspec.to_builtins(UNLIMITED)
    return {name: value for name, value in msgspec.to_builtins(limits).items() if value != unset[name]} or None


def limits_of(row: Mapping[str, Any] | None) -> Limits:
    """The limits of this stored form."""
    return UNLIMITED if row is None else msgspec.convert(row, Limits)


def next_revision(connection: Connection) -> int:
    """The next revision. The transaction must hold `Lock.KEYS`."""
    highest = (connection.execute(select(func.max(table.c.revision))).scalar() for table in (accounts, api_keys))
    return 1 + max(int(revision or 0) for revision in highest)
