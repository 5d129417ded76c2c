"""The books of a ledger, added up from nothing: what must hold in it after any fault.

Law: only the tables are believed, and each sum is made anew here, by the database, not by the code under test; then
`tokenweir reconcile`, with all its checks, must say the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from sqlalchemy import Engine, text

from proxy.reconciliation.reconcile import reconcile

_SUMS = ("charged_usd", "cost_usd", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
_SUMS_TAIL = ("total_tokens", "entries")
_OF_ENTRIES = """
    SELECT key_id, sum(charge_usd), sum(cost_usd), sum(prompt_tokens), coalesce(sum(cached_tokens), 0),
           sum(completion_tokens), coalesce(sum(reasoning_tokens), 0), sum(total_tokens), count(*)
    FROM ledger_entries GROUP BY key_id ORDER BY key_id"""
_HOLES = """
    SELECT node, min(journal_seq), max(journal_seq), count(DISTINCT journal_seq), count(*)
    FROM (SELECT node, journal_seq FROM ledger_entries UNION ALL SELECT node, journal_seq FROM dead_letters) AS receipts
    WHERE node IS NOT NULL GROUP BY node, journal_seq / (1::bigint << 40)"""


def wrong_books(engine: Engine, *, dead_letters: int = 0) -> list[str]:
    """What does not add up in a ledger on Postgres at rest; `dead_letters` of them are expected. Empty: nothing."""
    with engine.connect() as connection:

        def ask(sql: str) -> list[tuple[object, ...]]:
            return [tuple(row) for row in connection.execute(text(sql))]

        wrong = [
            *_unequal(ask(_OF_ENTRIES), ask(_sums_of("balances")), ask(_sums_of("usage_daily"))),
            *_holes(ask(_HOLES)),
            *_letters(ask("SELECT reason, count(*) FROM dead_letters GROUP BY reason"), dead_letters),
            *(f"doubled: {row}" for row in ask(
                "SELECT exchange_id, kind, count(*) FROM ledger_entries GROUP BY 1, 2 HAVING count(*) > 1 LIMIT 5"
            )),
        ]  # fmt: skip
    # Not within that transaction: of a large ledger, it would be idle for longer than the ledger's connections may be.
    return wrong + unreconciled(engine, dead_letters=dead_letters)


def unreconciled(engine: Engine, *, dead_letters: int = 0) -> list[str]:
    """What `tokenweir reconcile` finds in a ledger at rest, where nothing is on its way any more."""
    found = reconcile(engine, clock=time.time, grace_s=0)
    expected = {"dead letters": dead_letters}
    return [
        f"reconcile, {one.name}: {one.differences} differ: {one.examples}"
        for one in found
        if one.differences != expected.get(one.name, 0)
    ]


def _sums_of(table: str) -> str:
    sums = ", ".join(f"sum({name})" for name in (*_SUMS, *_SUMS_TAIL))
    return f"SELECT key_id, {sums} FROM {table} GROUP BY key_id ORDER BY key_id"


def _unequal(entries: list[tuple[object, ...]], *sums: list[tuple[object, ...]]) -> Iterator[str]:
    for table, found in zip(("balances", "usage_daily"), sums, strict=True):
        if found != entries:
            yield f"{table} are not the sum of the entries: {found}, {entries}"


def _holes(receipts: list[tuple[object, ...]]) -> Iterator[str]:
    """Each run of each journal counts from one, and every number has left one receipt."""
    for node, first, last, distinct, count in receipts:
        assert isinstance(first, int) and isinstance(last, int)  # noqa: PT018  bigint
        begin = first >> 40 << 40
        if (first, last - begin, count) != (begin + 1, distinct, distinct):
            yield f"receipts of {node}: {first}..{last}, {distinct} different ones, {count} in all"


def _letters(letters: list[tuple[object, ...]], expected: int) -> Iterator[str]:
    if sum(int(str(count)) for _, count in letters) != expected:
        yield f"dead letters: {letters}"
