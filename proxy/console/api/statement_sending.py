"""Sends a statement by e-mail; uses the same functions as `tokenweir statement --send`.

Invariants: those of `reports/statement_mail.py`. A preview sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from proxy.billing.money import usd_text
from proxy.console.api.audited_operations import AuditedOperations
from proxy.console.api.endpoints import ApiCall, ApiReply, Endpoint, operation
from proxy.console.api.hidden_providers import statement_without_providers
from proxy.console.api.months import MonthText, month_named
from proxy.console.api.schemas.keys import Text
from proxy.console.api.statements import StatementsApi
from proxy.foundation.times import iso_utc
from proxy.ledger.accounts.audit_log import DONE, PendingEntry
from proxy.reports.statement_mail import (
    SEND,
    StatementMail,
    earlier_sending,
    send_statement,
    sent_to,
    statement_mail,
)
from proxy.settings.operators import OperatorRole


class MailQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A final statement."""

    scope_id: Text
    """the id of an organization, a project or a key"""
    month: MonthText


class SendBody(MailQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sends a final statement."""

    to: Annotated[str, Meta(min_length=3, max_length=254, description="an e-mail address")] | UnsetType = UNSET
    """an e-mail address; default: the one in `statement.customers`"""
    again: bool = False
    """send it even if it was sent before"""


class Sending(msgspec.Struct, frozen=True, kw_only=True):
    """A sending of a statement."""

    at: str
    by: str
    """the operator"""
    to: str
    is_certain: bool
    """false: its result is unknown, because it runs, or its process has crashed"""


class MailPreview(msgspec.Struct, frozen=True, kw_only=True):
    """The e-mail with a statement."""

    object: Literal["statement_mail"] = "statement_mail"
    scope_id: str
    month: str
    number: str
    """the short number of the statement"""
    amount_due_usd: str
    to: str | None
    """null: the customer has no e-mail address in `statement.customers`"""
    subject: str
    text: str
    attachment: str
    """the name of the attached file: a PDF, or without the extra `pdf` an HTML page"""
    sent: Sending | None
    """the last sending of this statement"""


@dataclass(frozen=True, slots=True)
class StatementSendingApi:
    """The routes `/v1/statements/mail` and `/v1/statements/send`."""

    statements: StatementsApi
    operations: AuditedOperations
    sending: AuditedOperations
    """on threads that a mail server may hold for long"""

    def endpoints(self) -> Iterable[Endpoint]:
        """The endpoints of this API."""
        yield Endpoint(
            method="GET", path="/v1/statements/mail", summary="The e-mail with a final statement; sends nothing.",
            serve=self.preview, query=MailQuery, answers={200: MailPreview}, role=OperatorRole.READ,
        )  # fmt: skip
        yield operation(
            "/v1/statements/send", "Send a final statement by e-mail.", self.send, SendBody, MailPreview,
            OperatorRole.ADMIN,
        )  # fmt: skip

    async def preview(self, call: ApiCall) -> ApiReply:
        """The mail. Raises ApiError, OSError."""
        return ApiReply(await self.operations.call_store(lambda: self._shown(self._mail(call.query, None))))

    async def send(self, call: ApiCall) -> ApiReply:
        """Send it. Raises ApiError: 502 if the mail server does not accept it; OSError."""
        body: SendBody = call.body
        to = None if body.to is UNSET else body.to
        mail: StatementMail = await self.operations.call_store(lambda: self._mail(body, to))

        def work(entry: PendingEntry) -> None:
            now = self.statements.unix_time()
            send_statement(mail, self.statements.audit_log, entry, again=body.again, now=now)

        await self.sending.run(call, SEND, mail.number, mail.details, work)
        return ApiReply(await self.statements.threads.run(self._shown, mail))

    # -- on a thread

    def _mail(self, named: MailQuery, to: str | None) -> StatementMail:
        """Raises ApiError, NotSendableError, LedgerUnavailable."""
        month = month_named(named.month, self.statements.unix_time())
        statement = self.statements.statement(named.scope_id, month)
        if self.statements.hides_providers():
            statement = statement_without_providers(statement)
        return statement_mail(statement, self.statements.letterhead(), to)

    def _shown(self, mail: StatementMail) -> MailPreview:
        sent = earlier_sending(self.statements.audit_log, mail.number)
        return MailPreview(
            scope_id=mail.statement.owner.scope_id,
            month=str(mail.statement.month),
            number=mail.statement.short_number,
            amount_due_usd=usd_text(mail.statement.due.total_nusd),
            to=mail.to or None,
            subject=mail.subject,
            text=mail.text,
            attachment=mail.attachment,
            sent=None
            if sent is None
            else Sending(at=iso_utc(sent.at), by=sent.actor, to=sent_to(sent), is_certain=sent.result == DONE),
        )
