"""Request and answer types of organizations, projects and credit.

Invariants:
- Limits have the same names as those of a key (`schemas/keys.py`).
- An account is named by its id, or by its name if the name is unique.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from proxy.billing.correction import REASON_CHARS_MAX
from proxy.billing.keys import Account
from proxy.billing.limits import BUDGET_NUSD_MAX
from proxy.billing.money import NUSD_PER_USD
from proxy.console.api.schemas.keys import LimitFields, LimitsShown, Text, limits_shown
from proxy.foundation.times import iso_utc
from proxy.reports.totals import SpendAndCredit

PAGE_DEFAULT, PAGE_MAX = 50, 100

_USD_MAX = BUDGET_NUSD_MAX // NUSD_PER_USD
_UUID7 = "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"


class NewAccount(LimitFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new organization, or a new project of an organization."""

    kind: Literal["organization", "project"]
    name: Text
    organization: Text | UnsetType = UNSET


class ChangedAccount(LimitFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes of an existing account."""

    account: Text
    name: Text | UnsetType = UNSET


class NamedAccount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names an account."""

    account: Text


class AccountsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Filter and page of the list of accounts."""

    page: Annotated[int, Meta(ge=1, le=100_000)] = 1
    size: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = PAGE_DEFAULT
    kind: Literal["organization", "project"] | UnsetType = UNSET


class NewCredit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Credit for a key or an account; a negative amount is a refund."""

    key: Text | UnsetType = UNSET
    """the key's id, alias or secret"""
    account: Text | UnsetType = UNSET
    usd: Annotated[float, Meta(ge=-_USD_MAX, le=_USD_MAX)]
    reason: Annotated[str, Meta(min_length=1, max_length=REASON_CHARS_MAX)]
    """shown in the ledger and on statements"""
    id: Annotated[str, Meta(pattern=_UUID7)] | UnsetType = UNSET
    """a new UUIDv7, for idempotent retries: one id is booked once"""


class AccountInfo(LimitsShown, frozen=True, kw_only=True):
    """An organization or a project."""

    id: str
    kind: Literal["organization", "project"]
    name: str
    organization_id: str | None
    """null for an organization"""
    created_at: str


class AccountPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of accounts, oldest first."""

    accounts: list[AccountInfo]
    total_count: int
    current_page: int
    total_pages: int


class Credited(msgspec.Struct, frozen=True, kw_only=True):
    """A booked top-up, and the key's or account's credit and spend after it. Money: USD."""

    id: str
    scope_id: str
    name: str
    usd: Decimal
    credit: Decimal
    """total of all top-ups"""
    spend: Decimal
    """lifetime charges"""


def account_shown(account: Account, paid: SpendAndCredit) -> AccountInfo:
    """The account with its spend and credit."""
    return AccountInfo(
        id=account.account_id,
        kind=account.kind.value,
        name=account.name,
        organization_id=account.parent_id,
        created_at=iso_utc(account.created_at),
        **limits_shown(account, paid),
    )
