"""The answer of `GET /v1/me`. Pure. Money: decimal strings of USD."""

from __future__ import annotations

from typing import Any

from proxy.billing.grants import GrantState
from proxy.billing.keys import ApiKey
from proxy.billing.money import usd_text
from proxy.budgets.budget_state import BudgetState
from proxy.budgets.thresholds import Subject
from proxy.foundation.times import iso_utc
from proxy.gateway.key_info.reading import KeyBudgets
from proxy.keys.access import KeyAccess

Document = dict[str, Any]

SINCE = (0.0,)
"""the times since which the spend of the key is needed"""


def me(key: ApiKey, access: KeyAccess, found: KeyBudgets) -> Document:
    """The key of the request. `found`: with the spend since `SINCE`."""
    payer = access.payer
    return {
        "object": "key",
        "id": key.key_id,
        "alias": key.alias,
        "project": {"id": payer.project_id, "name": payer.project},
        "organization": {"id": payer.organization_id, "name": payer.organization},
        "created_at": iso_utc(key.created_at),
        "expires_at": None if key.expires_at is None else iso_utc(key.expires_at),
        "old_secret_valid_until": None if key.old_until is None else iso_utc(key.old_until),
        "models": None if key.models is None else sorted(key.models),
        "spent_usd": usd_text(found.spent_nusd[0]),
        "limits": [_limits(one) for one in found.levels],
        "budgets": [_budget(one) for one in found.budgets],
        "grants": [_grant(one) for one in found.grants],
    }


def _limits(level: Subject) -> Document:
    limits = level.limits
    return {
        **_level(level),
        "budget_usd": None if limits.budget_nusd is None else usd_text(limits.budget_nusd),
        "budget_window": None if limits.budget_nusd is None else limits.budget_window,
        "time_zone": limits.time_zone,
        "prepaid": limits.prepaid,
        "rpm": limits.rpm,
        "tpm": limits.tpm,
        "parallel": limits.parallel,
    }


def _budget(state: BudgetState) -> Document:
    return {
        **_level(state.subject),
        "window": state.window,
        "window_start": iso_utc(state.since) if state.since else None,
        "window_end": None if state.until is None else iso_utc(state.until),
        "budget_usd": usd_text(state.limit_nusd),
        "spent_usd": usd_text(state.spent_nusd),
        "held_usd": usd_text(state.reserved_nusd),
        "left_usd": usd_text(state.left_nusd),
        "running": state.running,
    }


def _grant(state: GrantState) -> Document:
    grant = state.grant
    return {
        "id": grant.grant_id,
        "scope_id": grant.scope_id,
        "name": grant.name,
        "usd": usd_text(grant.nusd),
        "left_usd": usd_text(state.left),
        "expires_at": None if grant.expires_at is None else iso_utc(grant.expires_at),
        "recurs": grant.recurs,
    }


def _level(level: Subject) -> Document:
    return {"scope_id": level.scope_id, "scope_kind": level.kind, "name": level.name}
