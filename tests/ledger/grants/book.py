"""A ledger with grants, whose time passes as a test says."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import Engine

from proxy.billing.entries import EntryKind, LedgerEntry
from proxy.billing.grants import Grant, GrantState, new_grant
from proxy.billing.money import Nusd
from proxy.billing.settlement import content_hash
from proxy.ledger.grants.burning import read_current_states
from proxy.ledger.grants.store import GrantStore
from proxy.ledger.settling.store import LedgerStore
from proxy.reconciliation.check_grants import grants_add_up
from proxy.reconciliation.integrity import CheckScope
from proxy.reports.totals import read_paid
from proxy.storage.database import reading
from tests.ledger.entries import an_entry, arriving

T = 1_793_000_000.0
"""2026-10-26T09:33:20Z"""
DAY_S = 86_400.0


class Book:
    """A ledger whose clock is set by hand on SQLite; on Postgres it is the server's."""

    def __init__(self, engine: Engine, *, first: int = 0, is_real: bool = False) -> None:
        """`first`: number of its first exchange. `is_real`: on SQLite, too, time passes by itself."""
        self.first = first
        self.engine, self.set_to = engine, T if engine.dialect.name == "sqlite" and not is_real else None
        self.ledger = LedgerStore(engine, content_hash=content_hash, clock=lambda: self.now)
        self.grants = GrantStore(engine, self.ledger, clock=lambda: self.now)
        self.entries: list[LedgerEntry] = []

    @property
    def now(self) -> float:
        return time.time() if self.set_to is None else self.set_to

    def wait(self, seconds: float) -> None:
        assert self.set_to is not None
        self.set_to += seconds

    def charge(
        self, nusd: int, ago: float = 0.0, *, at: float | None = None, of: LedgerEntry | None = None,
        key_id: str = "key-1",
    ) -> LedgerEntry:  # fmt: skip
        """`ago`, `at`: when the exchange began. `of`: the exchange is adjusted."""
        number = self.first + len(self.entries)
        what = {} if of is None else {"exchange": of.exchange_id, "kind": EntryKind.ADJUSTMENT}
        started_at = of.started_at if of is not None else self.now - ago if at is None else at
        of_key = key_id if of is None else of.key_id
        entry = an_entry(
            number,
            charge_nusd=Nusd(nusd),
            started_at=started_at,
            key_id=of_key,
            details={},
            seq=len(self.entries),
            **what,
        )
        self.ledger.settle(arriving(entry))
        self.entries.append(entry)
        return entry

    def grant(self, nusd: int = 10, name: str = "trial", scope_id: str = "key-1", **fields: Any) -> GrantState:
        def make(now: float) -> Grant:
            return new_grant(
                grant_id=f"grant_{scope_id}_{name}", scope_id=scope_id, scope_name=scope_id, name=name,
                nusd=Nusd(nusd), created_at=now, **fields,
            )  # fmt: skip

        return self.grants.add(make)

    def post(self) -> None:
        while self.grants.post_due():
            pass

    def amounts(self, scope_id: str = "key-1") -> list[tuple[int, int, int]]:
        """Granted, burned, expired."""
        states = read_current_states(self.engine, scope_id)
        return [(one.granted, one.burned, one.expired) for one in sorted(states, key=lambda one: one.grant.begins_at)]

    def credit(self, scope_id: str = "key-1") -> int:
        return read_paid(self.engine, [scope_id])[scope_id].credit_nusd

    def wrong(self, since: float | None = None) -> list[dict[str, Any]]:
        with reading(self.engine) as connection:
            return grants_add_up(connection, CheckScope(self.now, since, 0.0)).examples
