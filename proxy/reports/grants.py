"""Grants as JSON. Amounts are exact decimal strings of USD, times ISO 8601 in UTC."""

from __future__ import annotations

from typing import Any

from proxy.billing.grants import GrantState
from proxy.billing.money import usd_text
from proxy.foundation.times import iso_utc


def grant_json(state: GrantState) -> dict[str, Any]:
    """A grant and its amounts."""
    grant = state.grant
    return {
        "grant_id": grant.grant_id,
        "name": grant.name,
        "scope_id": grant.scope_id,
        "scope_name": grant.scope_name,
        "usd": usd_text(grant.nusd),
        "granted_usd": usd_text(state.granted),
        "burned_usd": usd_text(state.burned),
        "expired_usd": usd_text(state.expired),
        "left_usd": usd_text(state.left),
        "begins_at": iso_utc(grant.begins_at),
        "expires_at": _moment(grant.expires_at),
        "priority": grant.priority,
        "recurs": grant.recurs,
        "time_zone": grant.time_zone,
        "series_id": grant.series_id,
        "created_at": iso_utc(grant.created_at),
        "revoked_at": _moment(grant.revoked_at),
    }


def _moment(at: float | None) -> str | None:
    return None if at is None else iso_utc(at)
