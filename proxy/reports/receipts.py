"""Receipts: one exchange on a statement, with the proof that the statement contains it; and checks without a ledger.

Invariant: a check needs only the files. It calculates every digest and every sum again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, select

from proxy.billing.entries import EntryKind
from proxy.billing.merkle import MerkleTree, path, root_by
from proxy.billing.money import nusd_from_usd, usd_text
from proxy.billing.period import Closings, Month
from proxy.billing.receipt import EMPTY, FORMAT, Line, digest_of, line_leaf, line_of, order_of, scope_leaf
from proxy.foundation.names import UnknownNameError
from proxy.ledger.archive.archives import absent, require_entries
from proxy.ledger.periods.activity import lines_of
from proxy.ledger.periods.closing import month_digests, read_closings, read_period
from proxy.ledger.schema.account_tables import accounts, api_keys
from proxy.ledger.schema.tables import ledger_entries
from proxy.reports.statement import StatementOwner, scopes_of
from proxy.reports.totals import keys_below
from proxy.storage.database import reading

EVERYBODY = "*"
"""the id of the tree over all statements of a month"""


class FalseDocument(ValueError):  # noqa: N818  the file is wrong, not the program
    """The content of a file does not match its digest; the message names the place."""


def statement_lines(engine: Engine, owner: StatementOwner, month: Month) -> Iterator[Line]:
    """The line of each entry of a statement, by key or account, in the order of its tree.

    Raises ValueError if some of them are in an archive, LedgerUnavailable.
    """
    with reading(engine) as connection:
        require_entries(connection, month)
        ids = ledger_entries.c.key_id.in_(scopes_of(owner))
        for row in lines_of(connection, month, read_closings(connection), ids):
            yield line_of(row)


def read_receipt(engine: Engine, exchange_id: str) -> dict[str, Any]:
    """The receipt of an exchange: see docs/reference/cli.md. Raises ValueError if no statement has it yet,
    LedgerUnavailable.

    Takes as long as reading a month of the key.
    """
    with reading(engine) as connection:
        closings = read_closings(connection)
        months = _months(connection, exchange_id, closings)
        if not months:
            raise UnknownNameError(f"{exchange_id}: {absent(connection, exchange_id)}")
        issued = [month for month in months if _is_issued(connection, month)]
        if not issued:
            raise ValueError(f"{exchange_id}: {months[0]} is not closed: a receipt is of a closed month")
        require_entries(connection, issued[0])
        return {
            "object": "receipt",
            "format": FORMAT,
            "exchange_id": exchange_id,
            "months": [_of_month(connection, exchange_id, month, closings) for month in issued],
            "open_months": [str(month) for month in months if month not in issued],
        }


def _months(connection: Connection, exchange_id: str, closings: Closings) -> list[Month]:
    columns = ledger_entries.c
    rows = connection.execute(
        select(columns.kind, columns.started_at, columns.settled_at).where(
            columns.exchange_id == exchange_id, columns.kind != EntryKind.ATTEMPT
        )
    )
    return sorted({closings.posted_in(*row) for row in rows})


def _is_issued(connection: Connection, month: Month) -> bool:
    period = read_period(connection, month)
    return period is not None and period.issued_at is not None


def _of_month(connection: Connection, exchange_id: str, month: Month, closings: Closings) -> dict[str, Any]:
    key_id = connection.execute(
        select(ledger_entries.c.key_id).where(ledger_entries.c.exchange_id == exchange_id).limit(1)
    ).scalar_one()
    lines: list[tuple[int, Line]] = []
    leaves: list[bytes] = []
    for row in lines_of(connection, month, closings, ledger_entries.c.key_id == key_id):
        line = line_of(row)
        if row.exchange_id == exchange_id:
            lines.append((len(leaves), line))
        leaves.append(line_leaf(line))
    return {
        "month": str(month),
        "scope_id": key_id,
        "digest": MerkleTree(leaves).root.hex(),
        "lines": [{"line": line, **_proof(leaves, index)} for index, line in lines],
        "above": list(_above(connection, key_id, month)),
    }


def _above(connection: Connection, key_id: str, month: Month) -> Iterator[dict[str, Any]]:
    """The proofs that the digests of the accounts above the key, and of the whole month, include the key's digest."""
    digests = month_digests(connection, month)
    project = select(api_keys.c.project_id).where(api_keys.c.key_id == key_id)
    project_id = connection.execute(project).scalar()
    parent = select(accounts.c.parent_id).where(accounts.c.account_id == project_id)
    for scope_id in (project_id, connection.execute(parent).scalar()):
        if scope_id is not None:
            below = {*connection.execute(keys_below(scope_id)).scalars(), scope_id}
            yield _scope_proof(scope_id, key_id, {one: digests[one] for one in below & digests.keys()})
    yield _scope_proof(EVERYBODY, key_id, digests)


def _scope_proof(scope_id: str, key_id: str, digests: Mapping[str, str]) -> dict[str, Any]:
    ids = sorted(digests)
    leaves = [scope_leaf(one, digests[one]) for one in ids]
    return {"scope_id": scope_id, "digest": digest_of(digests), **_proof(leaves, ids.index(key_id))}


def _proof(leaves: Sequence[bytes], index: int) -> dict[str, Any]:
    return {"index": index, "size": len(leaves), "path": [one.hex() for one in path(leaves, index)]}


# -- checks without a ledger


def check_receipt(receipt: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """(month, id) → the digest that the receipt leads to. Raises FalseDocument, KeyError, TypeError, ValueError."""
    _check_format(receipt["format"])
    found: dict[tuple[str, str], str] = {}
    for one in receipt["months"]:
        month, key_id, digest = one["month"], one["scope_id"], one["digest"]
        if not one["lines"]:
            raise FalseDocument(f"{month}: has no lines")
        for proof in one["lines"]:
            line = proof["line"]
            if (line["exchange_id"], line["key_id"]) != (receipt["exchange_id"], key_id):
                raise FalseDocument(f"{month}: a line is of another exchange or key")
            _check_proof(line_leaf(line), proof, digest, f"{month}, {line['kind']} {line['seq']}")
        found[month, key_id] = digest
        for proof in one["above"]:
            _check_proof(scope_leaf(key_id, digest), proof, proof["digest"], f"{month}, {proof['scope_id']}")
            found[month, proof["scope_id"]] = proof["digest"]
    return found


def _check_proof(leaf: bytes, proof: Mapping[str, Any], digest: str, where: str) -> None:
    beside = [bytes.fromhex(one) for one in proof["path"]]
    if root_by(leaf, proof["index"], proof["size"], beside).hex() != digest:
        raise FalseDocument(f"{where}: does not lead to the digest {digest}")


def check_statement(statement: Mapping[str, Any], lines: Iterable[Line] | None) -> None:
    """Check that a statement (as JSON) adds up; given its lines, also that they match the statement's digest and sums.

    Raises FalseDocument, KeyError, TypeError, ValueError.
    """
    _check_format(statement.get("digest_format"))
    usage = sum(nusd_from_usd(one["charge_usd"]) for one in statement["usage"])
    adjusted = sum(nusd_from_usd(one["charge_usd"]) for one in statement["adjustments"])
    credited = sum(nusd_from_usd(one["credit_usd"]) for one in statement["credits"])
    opening = nusd_from_usd(statement["opening_balance_usd"])
    for name, total in (
        ("usage_usd", usage),
        ("adjustments_usd", adjusted),
        ("credits_usd", credited),
        ("closing_balance_usd", opening - usage - adjusted + credited),
    ):
        _check_equal(name, statement[name], usd_text(total))
    if "due" in statement:  # others are of earlier versions
        _check_due(statement)
    if lines is not None:
        _check_lines(statement, list(lines))


def _check_due(statement: Mapping[str, Any]) -> None:
    for name in ("prices", *(["keys"] if statement["scope_kind"] != "key" else [])):
        total = sum(nusd_from_usd(one["charge_usd"]) for one in statement[name])
        _check_equal(f"usage_usd of {name}", statement["usage_usd"], usd_text(total))
    due = statement["due"]
    total = sum(nusd_from_usd(due[f"{name}_usd"]) for name in ("net", "rounding", "tax"))
    _check_equal("due.amount_due_usd", due["amount_due_usd"], usd_text(total))


def _check_lines(statement: Mapping[str, Any], lines: Sequence[Line]) -> None:
    by_id: dict[str, list[Line]] = {}
    for line in lines:
        by_id.setdefault(line["key_id"], []).append(line)
    digests = {
        scope_id: MerkleTree(map(line_leaf, sorted(of_scope, key=order_of))).root.hex()
        for scope_id, of_scope in by_id.items()
    }
    own = statement["scope_id"]
    is_key = statement["scope_kind"] == "key"
    _check_equal("entries", statement["entries"], len(lines))
    _check_equal("digest", statement["digest"], digests.get(own, EMPTY) if is_key else digest_of(digests))
    for kind, name, sign, whose in (
        (EntryKind.USAGE, "usage_usd", 1, by_id),
        (EntryKind.ADJUSTMENT, "adjustments_usd", 1, by_id),
        (EntryKind.CREDIT, "credits_usd", -1, {own}),
    ):
        charges = (line["charge_usd"] for line in lines if line["kind"] == kind and line["key_id"] in whose)
        total = sum(nusd_from_usd(charge) for charge in charges if charge is not None)
        _check_equal(f"{name} of the entries", statement[name], usd_text(sign * total))


def _check_format(stated: object) -> None:
    if stated is None:
        raise FalseDocument("digest: there is none: the month is not closed")
    if stated != FORMAT:
        raise FalseDocument(f"format: {stated} is not known to this version, which reads {FORMAT}")


def _check_equal(name: str, stated: object, found: object) -> None:
    if stated != found:
        raise FalseDocument(f"{name}: stated as {stated}, is {found}")
