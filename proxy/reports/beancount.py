"""Entries as a Beancount file: plain-text double-entry accounting.

Invariants: each entry that moves money is one transaction, with its exchange, on the day of its statement; amounts have
all nine decimals. If the file has all entries, it asserts the balances of the ledger, to the nano-dollar. The postings
of an entry add up to zero, and every posting belongs to an entry. So the accounts add up to zero, and the balance of an
account is the sum of its postings. Unknown amounts are not posted.

| account | is | its balance |
|---|---|---|
| `CUSTOMER`, by key or account | an asset | what is owed to us; below zero: credit |
| `REVENUE` | income | charges, below zero as every income |
| `ADJUSTMENTS` | income | corrections of charges |
| `PAYMENTS` | an asset | what was paid in, less refunds |
| `GRANTS` | income | granted amounts less expired ones: above zero, they lower the income |
| `COST` | an expense | what providers charge |
| `PAYABLE`, by provider | a liability | the same, owed to each |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from enum import StrEnum
from typing import IO, NamedTuple

from proxy.billing.details import EntryDetails
from proxy.billing.entries import EntryKind, LedgerEntry
from proxy.billing.period import day_of
from proxy.reports.export import ExportedEntry, usd
from proxy.reports.focus import booked_at


class Account(StrEnum):
    """The kinds of accounts."""

    CUSTOMER = "customer"
    REVENUE = "revenue"
    ADJUSTMENTS = "adjustments"
    PAYMENTS = "payments"
    GRANTS = "grants"
    COST = "cost of revenue"
    PAYABLE = "payable"


class Posting(NamedTuple):
    """One side of a transaction."""

    account: Account
    of: str | None
    """the id of the customer, the name of the provider; None: there is one such account"""
    nusd: int
    """above zero: a debit"""


_COUNTERPARTS: Mapping[str, Account] = {EntryKind.ADJUSTMENT: Account.ADJUSTMENTS, EntryKind.CREDIT: Account.PAYMENTS}


def postings(entry: LedgerEntry) -> list[Posting]:
    """The postings of an entry; none if it moves no money."""
    found: list[Posting] = []
    if entry.charge_nusd:
        found.append(Posting(Account.CUSTOMER, entry.key_id, entry.charge_nusd))
        is_grant = entry.kind == EntryKind.CREDIT and EntryDetails.of(entry.details).grant is not None
        other = Account.GRANTS if is_grant else _COUNTERPARTS.get(entry.kind, Account.REVENUE)
        found.append(Posting(other, None, -entry.charge_nusd))
    if entry.cost_nusd:
        found.append(Posting(Account.COST, None, entry.cost_nusd))
        found.append(Posting(Account.PAYABLE, entry.provider, -entry.cost_nusd))
    return found


_NAMES: Mapping[Account, str] = {
    Account.CUSTOMER: "Assets:Customers",
    Account.REVENUE: "Income:Usage",
    Account.ADJUSTMENTS: "Income:Adjustments",
    Account.PAYMENTS: "Assets:Payments",
    Account.GRANTS: "Income:Grants",
    Account.COST: "Expenses:CostOfRevenue",
    Account.PAYABLE: "Liabilities:Providers",
}
_CURRENCY = "USD"
# Of what an account's name may have, all but letters and digits; and of what a text may not.
_OTHER = re.compile(r"[^A-Za-z0-9]")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

Balances = Mapping[str, tuple[int, int]]
"""(charged, cost) by the id of each key and account, in nUSD"""


def write_beancount(file: IO[bytes], sources: Iterable[ExportedEntry], balances: Balances | None) -> None:
    """Write the entries. `balances`: those of the ledger at the last entry, to be asserted; None: no assertions,
    because some entries are left out."""
    book = _Book(file)
    for source in sources:
        book.add(source)
    if balances is not None:
        book.assert_balances(balances)


class _Book:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._names: dict[tuple[Account, str | None], str] = {}
        self._taken: set[str] = set()
        self._after = date(1970, 1, 2)
        self._write('option "title" "Tokenweir"', f'option "operating_currency" "{_CURRENCY}"')

    def add(self, source: ExportedEntry) -> None:
        entry = source.entry
        lines = [(self._name(posting), posting.nusd) for posting in postings(entry)]
        if not lines:
            return
        day = day_of(source.settled_at if source.is_late else booked_at(source))
        self._after = max(self._after, day + timedelta(days=1))
        why = EntryDetails.of(entry.details).why or "" if entry.kind != EntryKind.USAGE else ""
        self._write(
            f"{day} * {_text(entry.key_alias)} {_text(str(why) or entry.model or entry.kind)}",
            f"  exchange: {_text(entry.exchange_id)}",
            f"  kind: {_text(entry.kind)}",
            *([f"  usage-source: {_text(entry.usage_source)}"] if entry.kind == EntryKind.USAGE else []),
            *(['  cost: "unknown"'] if entry.kind == EntryKind.USAGE and entry.cost_nusd is None else []),
            *(f"  {name}  {usd(nusd):.9f} {_CURRENCY}" for name, nusd in lines),
        )

    def assert_balances(self, balances: Balances) -> None:
        for scope_id, (charged, _) in sorted(balances.items()):
            self._assert(self._name(Posting(Account.CUSTOMER, scope_id, 0)), charged)
        self._assert(self._name(Posting(Account.COST, None, 0)), sum(cost for _, cost in balances.values()))

    def _assert(self, name: str, nusd: int) -> None:
        self._write(f"{self._after} balance {name}  {usd(nusd):.9f} ~ 0 {_CURRENCY}")

    def _name(self, posting: Posting) -> str:
        """The Beancount account of a posting, opened at its first use. Equal names get distinct suffixes."""
        one = posting.account, posting.of
        if one not in self._names:
            root = _NAMES[posting.account]
            name = root if posting.of is None else f"{root}:{_component(posting.of)}"
            while name in self._taken:
                name += "-2"
            self._taken.add(name)
            self._names[one] = name
            of = [] if posting.of is None else [f"  id: {_text(posting.of)}"]
            self._write(f"1970-01-01 open {name} {_CURRENCY}", *of)
        return self._names[one]

    def _write(self, *lines: str) -> None:
        self._file.write("".join(f"{line}\n" for line in (*lines, "")).encode())


def _component(text: str) -> str:
    """Part of an account's name: it begins with a capital letter or a digit."""
    name = _OTHER.sub("-", text).lstrip("-")
    return name[:1].upper() + name[1:] if name else "X"


def _text(text: str) -> str:
    printable = _UNPRINTABLE.sub("?", text)
    escaped = printable.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
