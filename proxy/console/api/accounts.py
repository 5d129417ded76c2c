"""Organizations, projects and credit; uses the same functions as the commands.

Invariants:
- All routes are for the operator only, and every change is in the audit log.
- A top-up is idempotent by its id.
- Limits have the same names as those of a key (`schemas/keys.py`).
- An account is named by its id, or by its name if the name is unique.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import Engine

from proxy.billing.correction import REASON_CHARS_MAX
from proxy.billing.entries import LedgerEntry
from proxy.billing.keys import Account, AccountKind, ApiKey
from proxy.billing.limits import BUDGET_NUSD_MAX, credit_counter_id
from proxy.billing.money import NUSD_PER_USD, Nusd, nusd_from_usd, usd_text
from proxy.budgets.budget_state import BudgetState
from proxy.console.api.audited_operations import AuditedOperations, checked
from proxy.console.api.endpoints import ApiCall, ApiReply, Endpoint, operation, usd_number
from proxy.console.api.keys import PAGE_DEFAULT, PAGE_MAX
from proxy.console.api.reading import invalid
from proxy.console.api.schemas.keys import (
    NOTHING_PAID,
    BudgetUse,
    CounterStatesOf,
    LimitFields,
    LimitsShown,
    PaidOf,
    Text,
    budget_shown,
    changes,
    limits_shown,
    made_limits,
)
from proxy.foundation.ids import exchange_id, new_id
from proxy.foundation.times import iso_utc
from proxy.http.errors import bad_request
from proxy.ledger.accounts.account_store import AccountStore
from proxy.ledger.accounts.audit_log import PendingEntry
from proxy.ledger.accounts.credit import add_credit
from proxy.ledger.accounts.key_store import KeyStore
from proxy.ledger.settling.store import LedgerStore
from proxy.reports.account_list import AccountFilter, AccountLine, AccountOrder, AccountStatus, read_account_list
from proxy.reports.budget_states import fullest, read_budget_states
from proxy.reports.key_spend import read_paid_of_accounts
from proxy.reports.totals import SpendAndCredit
from proxy.settings.operators import OperatorRole
from proxy.storage.executor import BoundedExecutor

_USD_MAX = BUDGET_NUSD_MAX // NUSD_PER_USD
_UUID7 = "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"


class NewAccount(LimitFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new organization, or a new project of an organization."""

    kind: Literal["organization", "project"]
    name: Text
    organization_id: Text | UnsetType = UNSET
    """id or name of a project's organization"""

    OTHER_NAMES: ClassVar[Mapping[str, str]] = {"organization": "organization_id"}


class ChangedAccount(LimitFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes of an existing account."""

    account: Text
    name: Text | UnsetType = UNSET
    organization_id: Text | UnsetType = UNSET
    """id or name of a project's organization, which cannot be changed: any other one is refused"""

    OTHER_NAMES: ClassVar[Mapping[str, str]] = {"organization": "organization_id"}


class NamedAccount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names an account."""

    account: Text


class AccountsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Filters (combined with AND), order and page of the list of accounts."""

    page: Annotated[int, Meta(ge=1, le=100_000)] = 1
    size: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = PAGE_DEFAULT
    kind: Literal["organization", "project"] | UnsetType = UNSET
    q: Text | UnsetType = UNSET
    """a part of the name or id of the account, or of those of the project's organization; in any case"""
    organization_id: Text | UnsetType = UNSET
    """the organization itself, and its projects"""
    status: Literal["active", "exhausted", "blocked"] | UnsetType = UNSET
    """`exhausted`: its own budget or prepaid credit is spent"""
    sort: Literal["created", "name", "spend", "budget"] = "created"
    """`spend`: lifetime spend; `budget`: used share of the budget or prepaid credit"""
    order: Literal["asc", "desc"] | UnsetType = UNSET
    """by default `desc` for `spend` and `budget`, and else `asc`"""


class NewCredit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Credit for a key or an account; a negative amount is a refund."""

    key: Text | UnsetType = UNSET
    """the key's id, alias or secret"""
    account: Text | UnsetType = UNSET
    usd: Annotated[float, Meta(ge=-_USD_MAX, le=_USD_MAX)]
    reason: Annotated[str, Meta(min_length=1, max_length=REASON_CHARS_MAX)]
    """shown in the ledger and on statements"""
    id: Annotated[str, Meta(pattern=_UUID7, description="a new UUIDv7")] | UnsetType = UNSET
    """a new UUIDv7, for idempotent retries: one id is booked once"""


class AccountInfo(LimitsShown, frozen=True, kw_only=True):
    """An organization or a project."""

    id: str
    kind: Literal["organization", "project"]
    name: str
    organization_id: str | None
    """null for an organization"""
    created_at: str


class ListedAccount(AccountInfo, frozen=True, kw_only=True):
    """An account in a list."""

    organization: str | None
    """the name of a project's organization"""
    status: AccountStatus
    keys: int
    """keys of the account that are not revoked"""
    budget_use: BudgetUse | None
    """the use of its own budget or prepaid credit, whichever is used more; null: none, or not used yet"""


class AccountPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of accounts."""

    accounts: list[ListedAccount]
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
    amount_usd: str
    """`usd` as a decimal string"""
    credit_usd: str
    """`credit` as a decimal string"""
    spend_usd: str
    """`spend` as a decimal string"""


def account_shown(account: Account, paid: SpendAndCredit) -> dict[str, Any]:
    """The fields of `AccountInfo`."""
    return {
        "id": account.account_id,
        "kind": account.kind.value,
        "name": account.name,
        "organization_id": account.parent_id,
        "created_at": iso_utc(account.created_at),
        **limits_shown(account, paid),
    }


# A UUIDv7 holds its creation time. With an older id, the first top-up may be in an archived month and go unnoticed.
ID_AGE_S_MAX = 86_400


@dataclass(frozen=True, slots=True)
class AccountsApi:
    """The routes `/account/*` and `/credit/add`."""

    engine: Engine
    accounts: AccountStore
    keys: KeyStore
    ledger: LedgerStore
    operations: AuditedOperations
    threads: BoundedExecutor
    unix_time: Callable[[], float]
    paid: PaidOf
    counter_states: CounterStatesOf

    def endpoints(self) -> Iterable[Endpoint]:
        """The endpoints of this API."""
        yield operation("/account/new", "Create an organization or a project.", self.new, NewAccount, AccountInfo)
        yield operation("/account/update", "Change an account.", self.update, ChangedAccount, AccountInfo)
        yield operation(
            "/account/block",
            "Block an account and all of its keys.",
            self.block,
            NamedAccount,
            AccountInfo,
        )
        yield operation("/account/unblock", "Unblock an account.", self.unblock, NamedAccount, AccountInfo)
        yield operation(
            "/credit/add",
            "Add credit; a negative amount is a refund.",
            self.pay,
            NewCredit,
            Credited,
            OperatorRole.ADMIN,
        )
        yield Endpoint(
            method="GET", path="/account/list", summary="Organizations and projects.", serve=self.listed,
            query=AccountsQuery, answers={200: AccountPage}, role=OperatorRole.READ,
        )  # fmt: skip

    async def new(self, call: ApiCall) -> ApiReply:
        """Create an organization or a project. Raises ApiError, OSError."""
        fields: NewAccount = call.body
        kind = AccountKind(fields.kind)
        if (kind is AccountKind.PROJECT) is (fields.organization_id is UNSET):
            message = "'organization_id': required for a project, not allowed for an organization."
            raise invalid(message, "organization_id")
        limits = made_limits(checked("max_budget", changes, fields))

        def work(_act: PendingEntry) -> Account:
            name, organization = fields.name, fields.organization_id
            if organization is UNSET:
                return self.accounts.create_organization(account_id=new_id("org"), name=name, limits=limits)
            return self.accounts.create_project(
                account_id=new_id("proj"), name=name, organization=organization, limits=limits
            )

        made = await self.operations.run(call, f"account.create-{kind.value}", fields.name, fields, work)
        return ApiReply(AccountInfo(**account_shown(made, NOTHING_PAID)))

    async def update(self, call: ApiCall) -> ApiReply:
        """Change the name or limits of an account. Raises ApiError, OSError."""
        fields, organization = checked("max_budget", changes, call.body), call.body.organization_id

        def change(named: str) -> Account:
            if organization is not UNSET:
                self._check_organization(named, organization)
            return self.accounts.update(named, **fields)

        return await self._changed(call, "update", change)

    async def block(self, call: ApiCall) -> ApiReply:
        """Refuse the keys of an account. Raises ApiError, OSError."""
        return await self._changed(call, "block", self.accounts.block)

    async def unblock(self, call: ApiCall) -> ApiReply:
        """Accept the keys of an account again. Raises ApiError, OSError."""
        return await self._changed(call, "unblock", self.accounts.unblock)

    async def listed(self, call: ApiCall) -> ApiReply:
        """A page of accounts. Raises OSError."""
        query: AccountsQuery = call.query
        wanted = _wanted(query)
        budgets = await self._budgets(None) if wanted.needs_shares else {}
        shares = {scope_id: state.used_ratio for scope_id, state in budgets.items()}
        read = partial(read_account_list, first=(query.page - 1) * query.size, size=query.size)
        lines, total = await self.threads.run(partial(read, self.engine, wanted, shares))
        ids = [line.account_id for line in lines]
        found = {one.account_id: one for one in await self.threads.run(self.accounts.with_ids, ids)}
        paid = await self.threads.run(read_paid_of_accounts, self.engine, ids)
        budgets = budgets or await self._budgets(ids)
        return ApiReply(
            AccountPage(
                accounts=[_listed(line, found[line.account_id], paid, budgets) for line in lines],
                total_count=total,
                current_page=query.page,
                total_pages=-(-total // query.size),
            )
        )

    async def pay(self, call: ApiCall) -> ApiReply:
        """Add credit to a key or account. Raises ApiError, OSError."""
        body: NewCredit = call.body
        if (body.key is UNSET) is (body.account is UNSET):
            raise bad_request("Give either 'key' or 'account'.", param="key", code="missing_field")
        key = None if body.key is UNSET else await self.operations.key_named(body.key)
        nusd = checked("usd", lambda usd: nusd_from_usd(repr(usd)), body.usd)
        made = exchange_id() if body.id is UNSET else self._recent(body.id)

        def work(act: PendingEntry) -> LedgerEntry:
            scope = self.accounts.one(str(body.account)) if key is None else self.keys.one(key)
            act.target, name = _identity(scope)
            return add_credit(
                self.ledger, exchange_id=made, scope_id=act.target, name=name, nusd=nusd, why=body.reason,
                at=self.unix_time(),
            )  # fmt: skip

        entry = await self.operations.run(call, "credit.add", key or str(body.account), body, work)
        paid = (await self.threads.run(self.paid, [entry.key_id]))[entry.key_id]
        return ApiReply(
            Credited(
                id=entry.exchange_id,
                scope_id=entry.key_id,
                name=entry.key_alias,
                usd=usd_number(-entry.charge_nusd),
                credit=usd_number(paid.credit_nusd),
                spend=usd_number(paid.used_nusd),
                amount_usd=usd_text(Nusd(-entry.charge_nusd)),
                credit_usd=usd_text(paid.credit_nusd),
                spend_usd=usd_text(paid.used_nusd),
            )
        )

    async def _changed(self, call: ApiCall, what: str, change: Callable[[str], Account]) -> ApiReply:
        named: str = call.body.account
        done = await self.operations.run(call, f"account.{what}", named, call.body, lambda _act: change(named))
        paid = await self.threads.run(self.paid, [done.account_id])
        return ApiReply(AccountInfo(**account_shown(done, paid[done.account_id])))

    def _check_organization(self, named: str, organization: str) -> None:
        """Raises ValueError if the account `named` is not a project of this organization."""
        owner = self.accounts.one(organization, AccountKind.ORGANIZATION)
        if self.accounts.one(named).parent_id != owner.account_id:
            raise ValueError("organization: cannot be changed: a project stays in its organization")

    async def _budgets(self, account_ids: Collection[str] | None) -> Mapping[str, BudgetState]:
        """Account id → its fullest budget or balance. None: of all accounts. Raises OSError."""
        ids = None if account_ids is None else [*account_ids, *map(credit_counter_id, account_ids)]
        counters = await self.counter_states(ids)
        return fullest(await self.threads.run(read_budget_states, self.engine, counters, self.unix_time(), account_ids))

    def _recent(self, text: str) -> str:
        """`text`, if it is an id created within ID_AGE_S_MAX. Raises ApiError."""
        made_at = (UUID(text).int >> 80) / 1000
        if abs(self.unix_time() - made_at) > ID_AGE_S_MAX:
            raise invalid("'id': this UUIDv7 was created more than 24 hours from now; create a new one.", "id")
        return text


def _wanted(query: AccountsQuery) -> AccountFilter:
    order, direction = AccountOrder(query.sort), query.order
    fullest_first = order in (AccountOrder.SPEND, AccountOrder.BUDGET)
    return AccountFilter(
        kind=None if query.kind is UNSET else AccountKind(query.kind),
        text=None if query.q is UNSET else query.q,
        organization_id=None if query.organization_id is UNSET else query.organization_id,
        status=None if query.status is UNSET else AccountStatus(query.status),
        order=order,
        descending=fullest_first if direction is UNSET else direction == "desc",
    )


def _listed(
    line: AccountLine, account: Account, paid: Mapping[str, SpendAndCredit], budgets: Mapping[str, BudgetState]
) -> ListedAccount:
    budget = budgets.get(account.account_id)
    is_exhausted = line.status is AccountStatus.ACTIVE and budget is not None and budget.used_ratio >= 1
    return ListedAccount(
        **account_shown(account, paid[account.account_id]),
        organization=line.organization,
        status=AccountStatus.EXHAUSTED if is_exhausted else line.status,
        keys=line.keys,
        budget_use=budget_shown(budget),
    )


def _identity(key: ApiKey | Account) -> tuple[str, str]:
    """Id and name of the account."""
    return (key.key_id, key.alias) if isinstance(key, ApiKey) else (key.account_id, key.name)
