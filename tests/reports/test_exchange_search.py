"""Search for exchanges: by ids of every kind, by parts of names, by accounts and batches, in each order."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Engine, insert

from proxy.billing.entries import LedgerEntry
from proxy.ledger.schema.account_tables import accounts, api_keys
from proxy.ledger.schema.tables import stored_batches
from proxy.reports import exchange_search
from proxy.reports.exchange_search import ExchangeFilter, ExchangeOrder, read_exchanges
from proxy.reports.usage import id_from
from proxy.storage.database import writing
from tests.ledger.entries import an_entry
from tests.ledger.owners import insert_owners
from tests.ledger.priced_entries import settle
from tests.support.ledgers import on_both_databases

pytestmark = pytest.mark.io

BEGIN = 1_793_059_200.0


def began(number: int, **differences: Any) -> LedgerEntry:
    at = BEGIN + number
    exchange_id = f"{id_from(at)}7{number:03x}-8000-{number:012x}"
    made = {"charge_nusd": 10 - number, "duration_ms": 100.5, "completion_tokens": number % 2, **differences}
    entry = an_entry(
        exchange=exchange_id, started_at=at, provider_response_id=f"chatcmpl-{number}", **made
    )  # fmt: skip
    return replace(entry, entry_id=f"e-{number}")


ENTRIES = [
    began(0, model="aurora-large", key_alias="Anna_1"),
    began(1, key_id="key-2", key_alias="bert"),
    began(2, key_id="key-3", key_alias="carl", provider="borealis", duration_ms=9_000.0),
    began(3, key_id="key-2", key_alias="bert", details={"batch": {"lines": 2}, "batch_id": "batch_7"}),
    began(4, key_id="key-2", key_alias="bert", details={"custom_id": "a", "batch_id": "batch_7"}),
    began(5, key_id="key-2", key_alias="bert", details={"custom_id": "b", "batch_id": "batch_8"}, charge_nusd=None),
]


@pytest.fixture
def filled(engine: Engine) -> Engine:
    insert_owners(engine)
    with writing(engine) as connection:
        row = {"limits": None, "blocked_at": None, "created_at": 1.0}
        account = {"account_id": "proj-2", "kind": "project", "parent_id": "org-1", "name": "app", "revision": 31}
        connection.execute(insert(accounts), {**row, **account})
        key = {"key_id": "key-3", "alias": "carl", "digest": b"c", "hint": "", "revision": 32, "project_id": "proj-2"}
        connection.execute(insert(api_keys), {**key, "created_at": 1.0})
        batch = {
            "exchange_id": ENTRIES[3].exchange_id, "batch_id": "batch_7", "api": "openai.batches", "provider": "tera",
            "key_id": "key-2", "key_alias": "bert", "project_id": "proj-1", "created_at": BEGIN + 3, "state": "settled",
            "endpoint": "/v1/x", "lines": 2, "names": "", "files": [], "terms": [], "next_at": 0.0,
        }  # fmt: skip
        connection.execute(insert(stored_batches), batch)
    settle(engine, *ENTRIES)
    return engine


def pages(engine: Engine, limit: int = 2, **wanted: Any) -> list[int]:
    """The numbers of all exchanges of a list, read page by page."""
    numbers = {entry.exchange_id: number for number, entry in enumerate(ENTRIES)}
    after, listed = None, list[int]()
    while True:
        found, after = read_exchanges(engine, ExchangeFilter(after=after, **wanted), limit)
        listed += [numbers[one.terminal.exchange_id] for one in found]
        if after is None:
            return listed


SEARCHES: dict[str, list[int]] = {
    ENTRIES[1].exchange_id: [1],
    ENTRIES[0].exchange_id[:8]: [5, 4, 3, 2, 1, 0],
    ENTRIES[2].exchange_id[:18]: [2],
    "chatcmpl-4": [4],
    "chatcmpl-": [],
    "batch_7": [4, 3],
    "anna_": [0],
    "A_1": [0],
    "AURORA": [0],
    "rt": [5, 4, 3, 1],
    "%": [],
    "deadbeef": [],
}


@on_both_databases
@pytest.mark.parametrize("scanned_max", [1, 100])
def test_an_exchange_is_found_by_what_people_have(
    filled: Engine, monkeypatch: pytest.MonkeyPatch, scanned_max: int
) -> None:
    """Before: only by its id, in the address. Also where a page may examine one entry only."""
    monkeypatch.setattr(exchange_search, "SCANNED_MAX", scanned_max)
    assert {text: pages(filled, text=text) for text in SEARCHES} == SEARCHES
    assert pages(filled, text="chatcmpl-4", key_id="key-1") == []
    assert pages(filled, text="batch_7", key_id="key-1") == []
    assert pages(filled, text=ENTRIES[1].exchange_id, key_id="key-2") == [1]


@on_both_databases
def test_exchanges_of_accounts_providers_and_batches(filled: Engine) -> None:
    assert pages(filled, project_id="proj-1") == [5, 4, 3, 1, 0]
    assert pages(filled, project_id="proj-2") == [2]
    assert pages(filled, organization_id="org-1") == [5, 4, 3, 2, 1, 0]
    assert pages(filled, organization_id="org-1", project_id="proj-2") == [2]
    assert pages(filled, organization_id="org_default") == []
    assert pages(filled, provider="borealis") == [2]
    assert pages(filled, batch_id="batch_7") == [4, 3]
    assert pages(filled, batch_id="batch_8") == [5], "the batch is not stored any more"
    assert pages(filled, batch_id="batch_7", text="bert", since=BEGIN + 4) == [4]


@on_both_databases
def test_each_order_has_every_exchange_once(filled: Engine) -> None:
    orders = {
        ExchangeOrder.STARTED: [5, 4, 3, 2, 1, 0],
        ExchangeOrder.CHARGE: [0, 1, 2, 3, 4, 5],
        ExchangeOrder.DURATION: [2, 5, 4, 3, 1, 0],
        ExchangeOrder.OUTPUT: [5, 3, 1, 4, 2, 0],
    }
    for (order, expected), limit in product(orders.items(), (1, 2, 9)):
        assert pages(filled, limit=limit, order=order) == expected
    assert pages(filled, order=ExchangeOrder.CHARGE, key_id="key-2", until=BEGIN + 5) == [1, 3, 4]
