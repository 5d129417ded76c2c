"""Organizations and projects, and what is paid in, as they are sent and shown. Law: limits have the names that a key's
have (`key_shapes.py`); an account is named by its id, or by its name where only one has it.
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
    """A new one; a project says of which organization."""

    kind: Literal["organization", "project"]
    name: Text
    organization: Text | UnsetType = UNSET


class ChangedAccount(LimitFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One that is there."""

    account: Text
    name: Text | UnsetType = UNSET


class NamedAccount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which account."""

    account: Text


class AccountsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which accounts."""

    page: Annotated[int, Meta(ge=1, le=100_000)] = 1
    size: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = PAGE_DEFAULT
    kind: Literal["organization", "project"] | UnsetType = UNSET


class NewCredit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A top-up of a key or of an account; below 0 it is paid out again."""

    key: Text | UnsetType = UNSET
    """its id, its alias or its secret"""
    account: Text | UnsetType = UNSET
    usd: Annotated[float, Meta(ge=-_USD_MAX, le=_USD_MAX)]
    reason: Annotated[str, Meta(min_length=1, max_length=REASON_CHARS_MAX)]
    """why, for whoever reads the ledger"""
    id: Annotated[str, Meta(pattern=_UUID7)] | UnsetType = UNSET
    """a new UUIDv7; whoever may have to ask again says the same one, and it is paid in once"""


class AccountInfo(LimitsShown, frozen=True, kw_only=True):
    """An organization or a project."""

    id: str
    kind: Literal["organization", "project"]
    name: str
    organization_id: str | None
    """of a project"""
    created_at: str


class AccountPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some accounts, oldest first."""

    accounts: list[AccountInfo]
    total_count: int
    current_page: int
    total_pages: int


class Credited(msgspec.Struct, frozen=True, kw_only=True):
    """What was paid in, and how the one that has it stands now. Money: USD."""

    id: str
    scope_id: str
    name: str
    usd: Decimal
    credit: Decimal
    """paid in for it in all"""
    spend: Decimal
    """charged in all its life"""


def account_shown(one: Account, paid: SpendAndCredit) -> AccountInfo:
    """As it is shown."""
    return AccountInfo(
        id=one.account_id,
        kind=one.kind.value,
        name=one.name,
        organization_id=one.parent_id,
        created_at=iso_utc(one.created_at),
        **limits_shown(one, paid),
    )
