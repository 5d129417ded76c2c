"""Statements: those of all customers in a month, and one of them as JSON, HTML, CSV or PDF.

Invariants: a statement is the one that `tokenweir statement` writes. A key gets its own statement only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import Engine

from proxy.billing.keys import Account, AccountKind
from proxy.billing.money import usd_text
from proxy.billing.period import Month, month_of
from proxy.console.api.endpoints import HEADERS, ApiCall, ApiReply, Endpoint
from proxy.console.api.hidden_providers import hides_from, statement_without_providers
from proxy.console.api.months import MonthState, MonthText, month_named, month_state
from proxy.console.api.reading import invalid
from proxy.foundation.times import iso_utc
from proxy.http.errors import ApiError
from proxy.ledger.accounts.account_store import AccountStore
from proxy.ledger.accounts.audit_log import AuditLog
from proxy.ledger.accounts.key_store import KeyStore
from proxy.ledger.periods.closing import Period, read_periods
from proxy.reports.account_list import AccountFilter, AccountOrder, read_account_list
from proxy.reports.buckets import DAY_S
from proxy.reports.statement import Statement, StatementOwner, read_statement
from proxy.reports.statement_html import statement_html
from proxy.reports.statement_mail import last_sent, sent_to
from proxy.reports.statement_pdf import PDF_ROWS_MAX, PdfMissing, rows_of, statement_pdf
from proxy.reports.statement_text import statement_csv, statement_json
from proxy.reports.usage import UsageFilter, read_usage
from proxy.settings.operators import OperatorRole
from proxy.settings.statement import StatementSettings
from proxy.storage.database import reading
from proxy.storage.executor import BoundedExecutor

PAGE_DEFAULT, PAGE_MAX = 20, 100
# Customers of one page of usage; the others of a month have nothing to bill.
SCOPES_MAX = 100_000

# A statement has its own styles and perhaps a logo, and nothing else.
_HTML_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox; frame-ancestors 'self'"
_TYPES = {"html": "text/html", "csv": "text/csv", "pdf": "application/pdf"}


class StatementsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A month, and a page of customers."""

    month: MonthText | UnsetType = UNSET
    """2026-11, in UTC; by default this month"""
    kind: Literal["organization", "project"] = "organization"
    q: Annotated[str, Meta(min_length=1, max_length=128)] | UnsetType = UNSET
    """a part of the name or id, in any case"""
    page: Annotated[int, Meta(ge=1, le=100_000)] = 1
    size: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = PAGE_DEFAULT


class StatementQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The month of a statement."""

    month: MonthText
    format: Literal["json", "html", "csv", "pdf"] = "json"


class StatementLine(msgspec.Struct, frozen=True, kw_only=True):
    """The statement of one customer in a month. Money: decimal strings of USD."""

    scope_id: str
    scope_kind: str
    """organization or project"""
    name: str
    state: MonthState | Literal["sent"]
    """sent: it is final, and was sent by e-mail"""
    charge_usd: str
    """usage and adjustments, as booked"""
    amount_due_usd: str | None
    """whole cents, with tax; null: the statement is not final"""
    short_number: str | None
    due_on: str | None
    sent_at: str | None
    sent_to: str | None


class MonthShown(msgspec.Struct, frozen=True, kw_only=True):
    """A month of the ledger."""

    month: str
    state: MonthState
    closed_at: str | None
    closed_by: str | None


class StatementPage(msgspec.Struct, frozen=True, kw_only=True):
    """The statements of a month, by name."""

    object: Literal["list"] = "list"
    month: str
    state: MonthState
    months: list[MonthShown]
    """the last twelve months from the first closed one on, the newest first"""
    listed: list[StatementLine] = msgspec.field(name="data")
    total_count: int
    current_page: int
    total_pages: int


@dataclass(frozen=True, slots=True)
class StatementsApi:
    """The routes `/v1/statements` and `/v1/statements/{scope_id}`."""

    engine: Engine
    threads: BoundedExecutor
    accounts: AccountStore
    keys: KeyStore
    audit_log: AuditLog
    letterhead: Callable[[], StatementSettings]
    unix_time: Callable[[], float]
    hides_providers: Callable[[], bool]
    """the setting `hide_providers`"""

    def endpoints(self) -> Iterable[Endpoint]:
        """The endpoints of this API."""
        yield Endpoint(
            method="GET", path="/v1/statements", summary="The statements of a month.", serve=self.listed,
            query=StatementsQuery, answers={200: StatementPage}, role=OperatorRole.READ,
        )  # fmt: skip
        yield Endpoint(
            method="GET", path="/v1/statements/{scope_id}", serve=self.one, query=StatementQuery,
            summary="The statement of a key, a project or an organization.", answers={200: dict[str, Any]},
            other_types=tuple(_TYPES.values()),
        )  # fmt: skip

    async def listed(self, call: ApiCall) -> ApiReply:
        """A page of the statements of a month. Raises ApiError, OSError."""
        query: StatementsQuery = call.query
        return ApiReply(await self.threads.run(self._page, query))

    async def one(self, call: ApiCall) -> ApiReply | web.StreamResponse:
        """One statement. Raises ApiError, OSError."""
        query: StatementQuery = call.query
        month = month_named(query.month, self.unix_time())
        own = call.session.key
        if own is not None and call.named != own.key_id:
            raise _no_scope()
        hides = hides_from(call.session, hides=self.hides_providers())
        make = partial(_rendered, kind=query.format, hides=hides)
        try:
            content = await self.threads.run(self._made, call.named, month, make)
        except PdfMissing as missing:
            raise ApiError(501, f"'format': {missing}.", param="format", code="pdf_unavailable") from None
        except ValueError as wrong:  # archived entries, or a logo that cannot be read
            raise invalid(f"'month': {wrong}.", "month") from None
        if isinstance(content, dict):
            return ApiReply(content)
        return _file(content, query.format, f"statement-{query.month}-{call.named}.{query.format}")

    # -- on a thread

    def _page(self, query: StatementsQuery) -> StatementPage:
        now = self.unix_time()
        month = month_named(str(month_of(now)) if query.month is UNSET else query.month, now)
        kind = AccountKind(query.kind)
        wanted = AccountFilter(kind=kind, text=None if query.q is UNSET else query.q, order=AccountOrder.NAME)
        first = (query.page - 1) * query.size
        lines, total = read_account_list(self.engine, wanted, {}, first=first, size=query.size)
        found = {one.account_id: one for one in self.accounts.with_ids([line.account_id for line in lines])}
        accounts = [found[line.account_id] for line in lines]
        with reading(self.engine) as connection:
            periods = {str(period.month): period for period in read_periods(connection)}
        state = month_state(month, periods.get(str(month)), now)
        shown = self._final(accounts, month) if state == "final" else self._charges(accounts, month, kind, state)
        return StatementPage(
            month=str(month), state=state, months=list(self._months(periods)), listed=shown, total_count=total,
            current_page=query.page, total_pages=-(-total // query.size),
        )  # fmt: skip

    def _final(self, accounts: Iterable[Account], month: Month) -> list[StatementLine]:
        """Closed statements, from their closed form."""
        letterhead = self.letterhead()
        owners = [StatementOwner(one.account_id, one.kind.value, one.name) for one in accounts]
        statements = [read_statement(self.engine, owner, month, letterhead=letterhead) for owner in owners]
        sent = last_sent(self.audit_log, [one.issued.number for one in statements if one.issued is not None])
        found = []
        for statement in statements:
            sending = None if statement.issued is None else sent.get(statement.issued.number)
            found.append(
                StatementLine(
                    scope_id=statement.owner.scope_id,
                    scope_kind=statement.owner.kind,
                    name=statement.owner.name,
                    state="final" if sending is None else "sent",
                    charge_usd=usd_text(statement.due.charges_nusd),
                    amount_due_usd=usd_text(statement.due.total_nusd),
                    short_number=statement.short_number,
                    due_on=None if statement.due_on is None else str(statement.due_on),
                    sent_at=None if sending is None else iso_utc(sending.at),
                    sent_to=None if sending is None else sent_to(sending),
                )
            )
        return found

    def _charges(
        self, accounts: Iterable[Account], month: Month, kind: AccountKind, state: MonthState
    ) -> list[StatementLine]:
        """The charges so far, from daily sums."""
        is_organization = kind is AccountKind.ORGANIZATION
        usage = UsageFilter(
            begin=int(month.since), end=int(month.until), bucket_s=DAY_S, is_total=True, is_booked=True,
            by_organization=is_organization, by_project=not is_organization,
        )  # fmt: skip
        totals, _ = read_usage(self.engine, usage, SCOPES_MAX)
        charged = {one.organization_id or one.project_id: one.charge_nusd for one in totals}
        return [
            StatementLine(
                scope_id=one.account_id,
                scope_kind=one.kind.value,
                name=one.name,
                state=state,
                charge_usd=usd_text(charged.get(one.account_id, 0)),
                amount_due_usd=None,
                short_number=None,
                due_on=None,
                sent_at=None,
                sent_to=None,
            )
            for one in accounts
        ]

    def _made(self, scope_id: str, month: Month, make: Callable[[Statement], Any]) -> Any:
        return make(self.statement(scope_id, month))

    def statement(self, scope_id: str, month: Month) -> Statement:
        """The statement of a key or an account. Raises ApiError 404, LedgerUnavailable."""
        return read_statement(self.engine, self._owner(scope_id), month, letterhead=self.letterhead())

    def _owner(self, scope_id: str) -> StatementOwner:
        """Raises ApiError 404."""
        for key in self.keys.with_ids([scope_id]):
            return StatementOwner(key.key_id, "key", key.alias)
        for account in self.accounts.with_ids([scope_id]):
            return StatementOwner(account.account_id, account.kind.value, account.name)
        raise _no_scope()

    def _months(self, periods: Mapping[str, Period]) -> Iterable[MonthShown]:
        now = self.unix_time()
        month = month_of(now)
        first = min(periods, default="")  # nothing is on a statement of an earlier month
        for _ in range(12):
            if str(month) < first:
                return
            period = periods.get(str(month))
            yield MonthShown(
                month=str(month),
                state=month_state(month, period, now),
                closed_at=None if period is None else iso_utc(period.closed_at),
                closed_by=None if period is None else period.closed_by,
            )
            month = month_of(month.since - 1)


def _rendered(statement: Statement, kind: str, *, hides: bool) -> dict[str, Any] | bytes:
    """Raises ApiError for a PDF that would be too long, PdfMissing, ValueError."""
    if kind == "pdf" and (rows := rows_of(statement)) > PDF_ROWS_MAX:
        message = f"'format': a PDF has at most {PDF_ROWS_MAX:,} rows here, and this statement has {rows:,}"
        raise invalid(f"{message}: choose html or csv, or run `tokenweir statement`.", "format")
    statement = statement_without_providers(statement) if hides else statement
    if kind == "html":
        return statement_html(statement).encode()
    if kind == "csv":
        return statement_csv(statement).encode()
    return statement_pdf(statement) if kind == "pdf" else statement_json(statement)


def _file(content: bytes, kind: str, name: str) -> web.Response:
    headers = {**HEADERS, "Content-Disposition": f'{"inline" if kind == "html" else "attachment"}; filename="{name}"'}
    if kind == "html":
        headers |= {"Content-Security-Policy": _HTML_POLICY, "X-Frame-Options": "SAMEORIGIN"}
    charset = None if kind == "pdf" else "utf-8"
    return web.Response(body=content, content_type=_TYPES[kind], charset=charset, headers=headers)


def _no_scope() -> ApiError:
    return ApiError(404, "No such key or account.", param="scope_id", code="scope_not_found")
