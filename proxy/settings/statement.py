"""The settings of statements: the seller, the customers' addresses, the terms of payment, the tax, the mail server.

Invariant: everything that is printed on a statement, but the logo, is stored when a month is closed, so its statements
keep it. What is needed to send them is never stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from pathlib import Path

from proxy.settings.fields import FieldPath, FieldType, or_variable, section, sections, setting, settings_section
from proxy.settings.kinds import path_of, text, whole
from proxy.settings.mail import MailSettings, email_address, mail

DUE_DAYS_MAX = 366
TEXT_CHARS_MAX = 1_000
TAX_PERCENT_MAX = 100
_PLACES_MAX = 3
_LINE = re.compile(r"[^\x00-\x1f\x7f\u2028-\u202e\u2066-\u2069]{1,200}")
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f\u2028-\u202e\u2066-\u2069]")
_OWNER = re.compile(r"[^\x00-\x1f]{1,200}")


def line() -> FieldType:
    """One printable line."""
    return text(_LINE, "a line of 1 to 200 characters")


def lines() -> FieldType:
    """Some printable lines, with or without a line break at the end."""
    shape = f"lines of text, up to {TEXT_CHARS_MAX} characters"

    def read(raw: object, at: FieldPath) -> str:
        value = at.filled(raw).strip() if isinstance(raw, str) else ""
        if not value or len(value) > TEXT_CHARS_MAX or _CONTROL.search(value):
            raise at.wrong(f"must be {shape}")
        return value

    return FieldType(shape, read, schema={"type": "string"})


def percent() -> FieldType:
    """A percentage as an exact decimal text without trailing zeros."""
    shape = f"a percentage from 0 to {TAX_PERCENT_MAX}, with up to {_PLACES_MAX} decimals"

    def read(raw: object, at: FieldPath) -> str:
        value = at.filled(raw) if isinstance(raw, str) else raw
        try:
            number = Decimal("NaN") if isinstance(value, bool) else Decimal(str(value).strip())
        except InvalidOperation:
            number = Decimal("NaN")
        if not number.is_finite() or not 0 <= number <= TAX_PERCENT_MAX or number != round(number, _PLACES_MAX):
            raise at.wrong(f"must be {shape}")
        return f"{round(number, _PLACES_MAX):f}".rstrip("0").rstrip(".")

    return FieldType(shape, read, schema=or_variable({"type": ["number", "string"]}))


@settings_section
class CustomerSettings:
    """A customer, as statements name it."""

    name: str
    """the id or the name of its account or key"""
    legal_name: str = setting(line(), "its name on statements", default="", shown="that of the account or key")
    address: str = setting(lines(), "its postal address", default="", shown="none")
    tax_id: str = setting(line(), "its tax number, with its label: `VAT DE123456789`", default="", shown="none")
    email: str = setting(
        email_address(),
        "where its statements are sent, the present one, also for closed months; of a project or a key, under its id: "
        "several customers may have projects of one name",
        default="",
        shown="none",
    )


@settings_section
class TaxSettings:
    """The tax on the amount due."""

    label: str = setting(line(), "its name on statements: `VAT`", default="Tax")
    percent: str = setting(percent(), "its rate")


@settings_section
class StatementSettings:
    """The seller and the terms on statements."""

    seller: str = setting(line(), "the seller's legal name", default="", shown="none")
    address: str = setting(lines(), "the seller's postal address", default="", shown="none")
    tax_id: str = setting(
        line(), "the seller's tax number, with its label: `VAT DE123456789`", default="", shown="none"
    )
    contact: str = setting(
        line(), "where customers ask about a statement: `billing@example.com`", default="", shown="none"
    )
    terms: str = setting(lines(), "how to pay: a bank account, a link", default="", shown="none")
    due_days: int | None = setting(
        whole(0, DUE_DAYS_MAX), "days from the closing of the month to the due date", default=None, shown="no due date"
    )
    tax: TaxSettings | None = setting(
        section(TaxSettings), "the tax that is added to the amount due", default=None, shown="none"
    )
    logo: Path | None = setting(
        path_of("file"), "PNG or JPEG file of up to 256 KiB, at the top of HTML and PDF", default=None, shown="none"
    )
    customers: Mapping[str, CustomerSettings] = setting(
        sections(CustomerSettings, _OWNER, "the id or the name of an organization, a project or a key"),
        "names and addresses of customers",
        default_factory=dict,
        shown="the names of accounts and keys",
    )
    mail: MailSettings | None = setting(
        mail(), "the mail server that sends statements", default=None, shown="statements are not sent"
    )

    @property
    def kept(self) -> StatementSettings:
        """The part that a closed month keeps."""
        customers = {name: replace(one, email="") for name, one in self.customers.items()}
        return replace(self, logo=None, mail=None, customers=customers)

    def customer(self, scope_id: str, name: str) -> CustomerSettings:
        """The customer with this id or name; without one, an entry with its name."""
        found = self.customers.get(scope_id) or self.customers.get(name) or CustomerSettings(name=name)
        return replace(found, legal_name=found.legal_name or name)

    def email(self, scope_id: str, organization: str | None) -> str:
        """Where the statements of the customer with this id are sent; empty: unknown. `organization`: its name, which
        no other organization has; None: it is a project or a key, whose name does not say whose it is."""
        found = self.customers.get(scope_id) or self.customers.get(organization or "")
        return "" if found is None else found.email
