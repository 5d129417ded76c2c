"""What people see of the ledger."""

from __future__ import annotations

import json
import time
from datetime import UTC, date, datetime

import pytest
from sqlalchemy import Engine

from proxy.foundation.times import since_from
from proxy.ledger.settling.store import LedgerStore
from proxy.reports import entry_reader
from proxy.reports.entry_reader import EntryFilter, EntryReader, entry_json
from tests.ledger.entries import an_entry, arriving, assert_sums
from tests.support.ledger_tables import read_balances, read_daily
from tests.support.ledgers import on_both_databases

PUBLIC = [
    *("entry_id", "exchange_id", "kind", "key_id", "key_alias", "provider", "model", "upstream_model", "endpoint"),
    *("streamed", "outcome", "finish_reason", "usage_source", "estimator", "prompt_tokens", "cached_tokens"),
    *("completion_tokens", "reasoning_tokens", "total_tokens", "events", "bytes", "cost_usd", "charge_usd"),
    *("price_version", "provider_response_id", "started_at", "first_token_ms", "duration_ms", "details"),
]

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC).timestamp()


def test_json_has_the_29_fields_in_their_order() -> None:
    shown = entry_json(an_entry(charge_nusd=1_500_000, cost_nusd=None, started_at=NOON + 0.25))
    assert list(shown) == PUBLIC
    assert len(PUBLIC) == 29
    assert (shown["charge_usd"], shown["cost_usd"]) == ("0.0015", None)
    assert shown["started_at"] == "2026-11-01T12:00:00.250000Z"
    assert shown["reasoning_tokens"] is None
    assert json.loads(json.dumps(shown)) == shown


# Entries are settled after they began: by the database's clock, which these tests do not set.
NOW = float(int(time.time()))


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        (EntryFilter(), [0, 1, 2]),
        (EntryFilter(key_alias="bert"), [1]),
        (EntryFilter(model="small"), [2]),
        (EntryFilter(since=NOW), [1, 2]),
        (EntryFilter(key_alias="bert", model="small"), []),
        (EntryFilter(key_alias="%"), []),
    ],
)
@pytest.mark.io
def test_filters(engine: Engine, store: LedgerStore, wanted: EntryFilter, numbers: list[int]) -> None:
    store.settle(arriving(an_entry(0, started_at=NOW - 1)))
    store.settle(arriving(an_entry(1, started_at=NOW, key_alias="bert")))
    store.settle(arriving(an_entry(2, started_at=NOW + 1, model="small")))
    found = [e.exchange_id for e in EntryReader(engine, wanted).new_entries()]
    assert found == [an_entry(n).exchange_id for n in numbers]


@on_both_databases
@pytest.mark.io
def test_a_follower_misses_nothing_and_repeats_nothing(
    engine: Engine, store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages end in the middle of a transaction's entries, transactions come while a page is read."""
    monkeypatch.setattr(entry_reader, "PAGE_ENTRIES", 3)
    reader = EntryReader(engine, EntryFilter())
    seen: list[str] = []
    settled: list[str] = []
    number = 0
    for size in (0, 1, 7, 3, 5):
        for _ in range(2):
            batch = [an_entry(number + i, started_at=NOON - number) for i in range(size)]
            number += size
            store.settle(arriving(*batch))
            settled += [e.entry_id for e in batch]
            for entry in reader.new_entries():
                seen.append(entry.entry_id)
                if number % 2 and len(seen) % 4 == 0:
                    break  # and comes back later
    seen += [e.entry_id for e in reader.new_entries()]
    assert sorted(seen) == sorted(settled)


@on_both_databases
@pytest.mark.io
def test_balances_by_key(engine: Engine, store: LedgerStore) -> None:
    store.settle(arriving(an_entry(0, key_id="b"), an_entry(1, key_id="a"), an_entry(2, key_id="b", charge_nusd=None)))
    by_key = {balance.key_id: balance for balance in read_balances(engine)}
    assert list(by_key) == ["a", "b"]
    assert (by_key["b"].entries, by_key["b"].charged_nusd, by_key["b"].total_tokens) == (2, 1_000_000_001, 300)


@on_both_databases
@pytest.mark.io
def test_usage_by_day_key_and_model(engine: Engine, store: LedgerStore) -> None:
    day_s = 86_400
    midnight = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
    begun = (midnight - 1e-6, midnight, midnight + day_s - 1, midnight + day_s)
    store.settle(arriving(*(an_entry(n, started_at=at, charge_nusd=10**n) for n, at in enumerate(begun))))
    store.settle(
        arriving(an_entry(9, started_at=midnight, key_id="key-0"), an_entry(10, started_at=midnight, model="a"))
    )
    november = read_daily(engine, date(2026, 11, 1), date(2026, 11, 30))
    assert [(one.day.day, one.key_id, one.model, one.entries) for one in november] == [
        (1, "key-0", "tera-large", 1),
        (1, "key-1", "a", 1),
        (1, "key-1", "tera-large", 2),
        (2, "key-1", "tera-large", 1),
    ]
    assert [one.charged_nusd for one in november if one.key_id == "key-1"] == [1_000_000_001, 110, 1_000]
    (october,) = read_daily(engine, date(2026, 10, 1), date(2026, 10, 31), key_id="key-1")
    assert (october.day, october.charged_nusd) == (date(2026, 10, 31), 1)
    assert_sums(engine)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90m", NOON - 5_400),
        ("24h", NOON - 86_400),
        ("7d", NOON - 604_800),
        ("2026-11-01", NOON - 43_200),
        ("2026-11-01T12:00:00Z", NOON),
        ("2026-11-01T12:00:00", NOON),
        ("2026-11-01 12:00", NOON),
        ("2026-11-01T13:00:00.5+01:00", NOON + 0.5),
    ],
)
def test_since(text: str, expected: float) -> None:
    assert since_from(text, NOON) == expected


@pytest.mark.parametrize(
    "text", ["", "yesterday", "7", "0d", "-7d", "7 d", "1e3d", "99999d", "2026-13-01", "٧d", "1969-01-01", "9999-12-31"]
)
def test_since_refuses_nonsense_and_says_what_it_wants(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a time|not a duration|ten years"):
        since_from(text, NOON)
