"""When the next grant begins: read once in a few seconds, and never long waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from proxy.billing.windows import window_end
from proxy.budgets import next_grants
from proxy.budgets.next_grants import KEPT_S, NextGrants
from proxy.ledger.grants.rows import next_begin
from proxy.storage.database import LedgerUnavailable
from tests.ledger.entries import a_ledger
from tests.ledger.grants.book import Book

pytestmark = pytest.mark.io


def test_planned_and_recurring_grants_and_no_others(engine: Engine) -> None:
    book = Book(engine)
    now = book.now + 1.0  # after the grants that begin at once
    book.grant(5, "at once")
    assert next_begin(engine, "key-1", now) is None
    book.grant(5, "monthly", recurs="calendar_month")
    monthly = next_begin(engine, "key-1", now)
    assert monthly == window_end("calendar_month", None, 0.0, now)
    planned = round(now) + 600.0
    book.grant(5, "planned", begins_at=planned)
    assert next_begin(engine, "key-1", now) == planned
    assert next_begin(engine, "key-1", planned) == monthly
    assert next_begin(engine, "key-2", now) is None
    for name in ("planned", "monthly"):
        book.grants.revoke(f"grant_key-1_{name}")
    assert next_begin(engine, "key-1", now) is None


async def test_it_is_read_once_in_its_time_and_again_after_it(tmp_path: Path) -> None:
    engine = a_ledger(tmp_path)
    book = Book(engine)
    read: list[str] = []

    async def in_thread(call: Callable[..., Any], *arguments: Any) -> Any:
        read.append(arguments[1])
        return call(*arguments)

    found = NextGrants(engine, in_thread, unix_time=lambda: book.now)
    assert await found.begin("key-1") is None
    book.grant(5, "soon", begins_at=book.now + KEPT_S + 3)
    assert await found.begin("key-1") is None
    book.wait(KEPT_S)
    assert await found.begin("key-1") == book.now + 3
    book.grant(5, "later", begins_at=book.now + 4)
    book.wait(3)
    assert await found.begin("key-1") == book.now + 1, "what has begun is not the next one"
    assert read == ["key-1"] * 3
    engine.dispose()


async def test_a_ledger_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = a_ledger(tmp_path)
    monkeypatch.setattr(next_grants, "WAIT_S", 0.01)

    async def hangs(*_: Any) -> None:
        await asyncio.Event().wait()

    async def fails(*_: Any) -> None:
        raise LedgerUnavailable("down")

    for in_thread in (hangs, fails):
        assert await NextGrants(engine, in_thread).begin("key-1") is None
    engine.dispose()
