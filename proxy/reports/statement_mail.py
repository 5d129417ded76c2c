"""Sends statements by e-mail.

Invariants:
- Only the statement of a closed month is sent.
- A project or a key has no address by its name: another customer's may have the same.
- A statement is sent a second time only on request. Of two operators who send it at the same time, one is refused.
- The audit log has who sent which statement to whom, and when; the state "sent" follows from it.
"""

from __future__ import annotations

import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, make_msgid

from proxy.billing.money import usd_text
from proxy.foundation.smtp import MailServer, send
from proxy.foundation.times import iso_utc
from proxy.ledger.accounts.audit_log import BEGUN, DONE, AuditEntry, AuditLog, PendingEntry
from proxy.reports.statement import Statement
from proxy.reports.statement_document import Document, document
from proxy.reports.statement_html import statement_html
from proxy.reports.statement_pdf import PDF_ROWS_MAX, has_pdf, rows_of, statement_pdf
from proxy.settings.mail import MailSettings, MailTls, is_address
from proxy.settings.statement import StatementSettings

SEND = "statement.send"
"""the action in the audit log; its target is the full number of the statement"""
SEND_S_MAX = 30.0


class NotSendableError(ValueError):
    """The statement cannot be sent; the message begins with the field of the request that is wrong, if there is one."""


class AlreadySentError(ValueError):
    """The statement was sent, or perhaps sent, before."""


@dataclass(frozen=True, slots=True)
class StatementMail:
    """A statement to be sent."""

    statement: Statement
    mail: MailSettings
    to: str
    """empty: the customer has no address"""
    attachment: str
    """the name of the attached file"""

    @property
    def number(self) -> str:
        """The full number of the statement."""
        assert self.statement.issued is not None, "only such statements are sent"
        return self.statement.issued.number

    @property
    def subject(self) -> str:
        """The subject: the number, the month, the amount."""
        found = document(self.statement)
        return f"Statement {self.statement.short_number} for {self._period(found)}: {found.due} due"

    @property
    def text(self) -> str:
        """The body, with the amount due first."""
        found = document(self.statement)
        facts = [f"{name}: {value}" for name, value in found.facts]
        parts = [
            [f"{found.due_title}: {found.due}", *found.due_notes],
            facts,
            [f"The statement is attached: {self.attachment}"],
            found.seller,
        ]
        return "\n\n".join("\n".join(part) for part in parts if part) + "\n"

    @property
    def details(self) -> Mapping[str, str]:
        """What the audit log records."""
        assert self.statement.issued is not None, "only such statements are sent"
        return {
            "to": self.to,
            "number": self.statement.short_number,
            "digest": self.statement.issued.digest,
            "amount_due_usd": usd_text(self.statement.due.total_nusd),
        }

    def message(self, now: float) -> bytes:
        """The message with its attachment. `now`: Unix seconds. Raises ValueError for a logo that cannot be read."""
        mail, seller = self.mail, self.statement.letterhead.seller
        made = EmailMessage(policy=SMTP.clone(cte_type="7bit"))
        made["From"] = Address(display_name=seller, addr_spec=mail.sender)
        made["To"] = Address(addr_spec=self.to)
        if mail.reply_to:
            made["Reply-To"] = Address(addr_spec=mail.reply_to)
        made["Subject"] = self.subject
        made["Date"] = format_datetime(datetime.fromtimestamp(now, UTC))
        made["Message-ID"] = make_msgid(domain=_domain(mail.sender))
        made.set_content(self.text, cte="quoted-printable")
        is_pdf = self.attachment.endswith(".pdf")
        content = statement_pdf(self.statement) if is_pdf else statement_html(self.statement).encode()
        kind = ("application", "pdf") if is_pdf else ("text", "html")
        made.add_attachment(content, *kind, filename=self.attachment, cte="base64")
        return made.as_bytes()

    @staticmethod
    def _period(found: Document) -> str:
        return dict(found.facts)["Period"]


def statement_mail(statement: Statement, letterhead: StatementSettings, to: str | None) -> StatementMail:
    """The mail with a statement. `letterhead`: the present settings. `to`: None: the customer's address. Raises
    NotSendableError."""
    owner, month = statement.owner, statement.month
    if statement.issued is None:
        raise NotSendableError(f"month: {month} is not closed: only final statements are sent")
    if letterhead.mail is None:
        raise NotSendableError("no mail server is configured: see `statement.mail` in the settings")
    address = to or letterhead.email(owner.scope_id, owner.name if owner.kind == "organization" else None)
    if to and not is_address(to):
        raise NotSendableError("to: must be an e-mail address, such as billing@example.com")
    kind = "pdf" if has_pdf() and rows_of(statement) <= PDF_ROWS_MAX else "html"
    return StatementMail(statement, letterhead.mail, address, f"statement-{statement.short_number}.{kind}")


def require_address(mail: StatementMail) -> None:
    """Raises NotSendableError for a mail without an address."""
    if not mail.to:
        owner = mail.statement.owner
        entry = owner.name if owner.kind == "organization" else owner.scope_id
        raise NotSendableError(
            f"to: {owner.name} has no e-mail address: set `statement.customers.{entry}.email`, or give an address"
        )


def last_sent(audit_log: AuditLog, numbers: Collection[str]) -> dict[str, AuditEntry]:
    """Full number → the last sending that succeeded. Statements that were not sent are left out. Raises
    LedgerUnavailable."""
    return audit_log.latest_of(SEND, numbers, (DONE,))


def earlier_sending(audit_log: AuditLog, number: str) -> AuditEntry | None:
    """The last sending of a statement that succeeded, or whose result is unknown: it runs, or its process has crashed.
    Raises LedgerUnavailable."""
    return audit_log.latest_of(SEND, [number], (DONE, BEGUN)).get(number)


def send_statement(mail: StatementMail, audit_log: AuditLog, entry: PendingEntry, *, again: bool, now: float) -> None:
    """Send the mail, within an operation of the audit log. `again`: even if it was sent before. `now`: Unix seconds.
    Raises AlreadySentError, NotSendableError, MailError, LedgerUnavailable."""
    require_address(mail)
    earlier = audit_log.claim(entry, SEND, again=again)
    if earlier is not None and not again:
        raise AlreadySentError(sent_text(earlier))
    settings = mail.mail
    recipients = list(dict.fromkeys(filter(None, (mail.to, settings.bcc))))
    send(_server(settings), settings.sender, recipients, mail.message(now), limit_s=SEND_S_MAX)


def sent_to(sent: AuditEntry) -> str:
    """The address of a sending."""
    return str((sent.details or {}).get("to", ""))


def sent_text(sent: AuditEntry) -> str:
    """A sending as a sentence without its full stop."""
    was = "was sent" if sent.result == DONE else "may have been sent (its result is unknown)"
    return f"the statement {was} to {sent_to(sent)} on {iso_utc(sent.at)[:10]} by {sent.actor}"


def _server(settings: MailSettings) -> MailServer:
    try:
        tls = ssl.create_default_context(cafile=settings.ca_file)
    except OSError as wrong:
        raise NotSendableError(f"statement.mail.ca_file: {settings.ca_file}: {wrong.strerror or wrong}") from None
    return MailServer(
        host=settings.host, port=settings.server_port, is_tls=settings.tls is MailTls.TLS,
        starttls=settings.tls is MailTls.STARTTLS, tls=tls, username=settings.username, password=settings.password,
        ehlo_name=_domain(settings.sender),
    )  # fmt: skip


def _domain(address: str) -> str:
    return address.rpartition("@")[2]
