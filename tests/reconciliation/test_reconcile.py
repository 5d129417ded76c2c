"""Each invariant is broken by hand, in SQL, and found; and nothing is found on a ledger that is right, however busy."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy import Engine, Table, delete, event, insert, select, update

from proxy.billing.correction import CorrectionRequest
from proxy.billing.pricing.prices import charge, configured
from proxy.billing.record import BillableParts, PricedUsage
from proxy.billing.settlement import amount, entry
from proxy.ledger.amounts import nusd
from proxy.ledger.schema.tables import balances, dead_letters, ledger_clock, ledger_entries, usage_daily
from proxy.ledger.settling.corrections import Corrections
from proxy.ledger.settling.store import Arrival, DeadLetter
from proxy.metering.usage import Reading, Usage, UsageSource
from proxy.reconciliation.check_receipts import EPOCH_BITS
from proxy.reconciliation.integrity import EXAMPLES_MAX, RecordsInFlight
from proxy.reconciliation.reconcile import CheckFinding, reconcile
from proxy.storage.database import open_engine, reading, writing
from tests.ledger.entries import a_ledger, emptied
from tests.ledger.priced_entries import (
    COST,
    DEARER,
    FIRST,
    NODE,
    PRICE,
    a_real_entry,
    a_real_record,
    a_real_store,
    settle,
    wrong,
)
from tests.support.examples import examples, repeats
from tests.support.ledgers import on_both_databases

pytestmark = pytest.mark.io

LONG_AGO = time.time() - 3_000
ENTRY = ledger_entries.c
NAMES = [
    *("terminal", "duplicates", "adjustments", "attempts", "credits", "balances", "days", "accounts", "dimensions"),
    *("grants", "numbers", "counts", "prices", "clock", "periods", "journals", "conflicts", "dead letters"),
]


def found(engine: Engine, **options: Any) -> dict[str, CheckFinding]:
    return {one.name: one for one in reconcile(engine, clock=time.time, **options)}


def by_hand(engine: Engine, *statements: Any) -> None:
    with writing(engine) as connection:
        for statement in statements:
            connection.execute(statement)


def change(number: int, of_kind: str = "usage", /, **values: Any) -> Any:
    """An UPDATE of one entry."""
    one = (ENTRY.exchange_id == a_real_entry(number).exchange_id) & (ENTRY.kind == of_kind)
    return update(ledger_entries).where(one).values(**values)


def copied(engine: Engine, number: int, **differences: Any) -> Any:
    """An INSERT of one entry again, with these differences."""
    with reading(engine) as connection:
        query = select(ledger_entries).where(ENTRY.exchange_id == a_real_entry(number).exchange_id)
        row = connection.execute(query).one()
    return insert(ledger_entries).values(**{**dict(zip(ENTRY.keys(), row, strict=True)), **differences})


def details(number: int, **differences: Any) -> dict[str, Any]:
    return {**a_real_entry(number).details, **differences}


def a_letter(reason: str) -> Any:
    """An INSERT of an open dead letter."""
    times = dict.fromkeys(("first_seen", "last_seen", "state_at"), 1.0)
    return insert(dead_letters).values(id="1", reason=reason, payload="{}", times_seen=1, state="open", **times)


OTHER_PRICE = {**a_real_entry(1).details["price"], "input": "1"}


TABLES = (ledger_entries, balances, usage_daily, ledger_clock)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[Table, list[dict[str, Any]]]:
    """Six exchanges of two keys and two models, on two days, settled long ago; one adjusted, one rerated."""
    engine = a_ledger(tmp_path_factory.mktemp("rows"))
    settle(
        engine,
        *(a_real_entry(n, key=f"key-{n % 2}", started_at=LONG_AGO - 86_400 * (n // 3)) for n in range(5)),
        a_real_entry(5, model="small", started_at=LONG_AGO, bills=BillableParts.OUTPUT),
    )
    at_work = Corrections(engine, a_real_store(engine))
    at_work.adjust(a_real_entry(0).exchange_id, CorrectionRequest(completion_tokens=7), "miscounted")
    at_work.rerate("small", lambda *_: (DEARER, None), since=0.0, until=2e9)
    by_hand(engine, update(ledger_entries).values(settled_at=LONG_AGO))
    with reading(engine) as connection:
        every = {
            table: [dict(zip(table.c.keys(), row, strict=True)) for row in connection.execute(select(table))]
            for table in TABLES
        }
    engine.dispose()
    return every


@pytest.fixture
def ledger(engine: Engine, rows: dict[Table, list[dict[str, Any]]]) -> Engine:
    by_hand(engine, delete(ledger_clock), *(insert(table).values(rows[table]) for table in TABLES))
    return engine


@on_both_databases
def test_nothing_is_wrong_with_a_ledger_that_is_right(ledger: Engine) -> None:
    for since in (None, 0.0, LONG_AGO, LONG_AGO + 1):
        findings = reconcile(ledger, clock=time.time, since=since)
        assert [one.name for one in findings] == NAMES
        assert [one for one in findings if not one.ok or one.examples or one.in_flight] == []
        assert all(one.description for one in findings)


def test_units_and_ways_of_serving_are_priced_again_from_what_is_stored(engine: Engine) -> None:
    list_price = replace(PRICE.tiers[0], cache_write=10**9, reasoning=7 * 10**8, searches=10**10, request=10**6)
    price = configured(list_price, service_tiers={"priority": DEARER.tiers})
    usage = Usage(1_000, 100, 50, 5, 1_050, cache_write_tokens=600, searches=2)
    record = a_real_record(1, price=price, cost=price, usage=usage)
    record = replace(record, reading=replace(record.reading, service_tier="batch"))
    fast = a_real_record(2, price=price, cost=price, usage=usage)
    fast = replace(fast, reading=replace(fast.reading, service_tier="priority"))
    settle(engine, entry(record), entry(fast))
    assert wrong(engine) == {}
    at_work = Corrections(engine, a_real_store(engine))
    line = at_work.adjust(record.opened.exchange_id, CorrectionRequest(searches=3), "one was not counted")
    assert line is not None
    assert line.charge_nusd == 10**7
    dearer = configured(replace(list_price, searches=2 * 10**10), service_tiers={"priority": PRICE.tiers})
    done = at_work.rerate("tera-large", lambda *_: (dearer, None), since=0.0, until=2e9)
    again = charge(PRICE, usage, BillableParts.EVERYTHING)
    assert done.total.charge_nusd == 3 * 10**7 + again - entry(fast).charge_nusd
    assert wrong(engine) == {}
    forged = {**entry(record).details, "units": {"cache_write_tokens": 600, "searches": 3}}
    by_hand(engine, change(1, details=forged))
    assert wrong(engine) == {"adjustments": 2, "prices": 1}  # both build upon what it counts


def test_what_other_models_used_and_what_is_stated_is_priced_again_from_what_is_stored(engine: Engine) -> None:
    image = PricedUsage("gpt-image-2", Usage(31, None, 6_993, None, 7_024), DEARER, PRICE)
    unknown = PricedUsage("gpt-image-9", Usage(5, None, 5), None, None)
    drawn = replace(a_real_record(1), other_models=(image, unknown))
    as_stated = replace(PRICE, stated=("1.05",))
    stated = replace(a_real_record(2, price=as_stated), stated_nusd_or_unset=20_001)
    records = (drawn, stated, a_real_record(3, price=as_stated))
    settle(engine, *map(entry, records))
    first, second, third = map(entry, records)
    ours = (amount(price, drawn.reading.usage, BillableParts.EVERYTHING) for price in (PRICE, COST))
    more = (amount(price, image.usage, BillableParts.EVERYTHING) for price in (DEARER, PRICE))
    assert None not in (expected := [a + b for a, b in zip(ours, more, strict=True) if a and b])
    assert all(abs(a - b) <= 1 for a, b in zip((first.charge_nusd, first.cost_nusd), expected, strict=True))
    assert first.details["unpriced_units"] == first.details["cost_unpriced_units"] == ["model:gpt-image-9"]
    assert (second.charge_nusd, third.charge_nusd) == (21_001, entry(a_real_record(3)).charge_nusd)  # 21,001.05
    assert wrong(engine) == {}
    at_work = Corrections(engine, a_real_store(engine))
    line = at_work.adjust(first.exchange_id, CorrectionRequest(completion_tokens=0, reasoning_tokens=0), "none came")
    assert line is not None
    assert line.charge_nusd is not None
    assert abs(line.charge_nusd + (drawn.reading.usage.completion_tokens or 0) * 410) <= 1
    less = CorrectionRequest(completion_tokens=1, reasoning_tokens=0)
    assert at_work.adjust(second.exchange_id, less, "less came") is not None
    assert exchange_of(engine, second.exchange_id) == 21_001, "what is stated does not depend on our counts"
    lists = {None: (DEARER, None), "gpt-image-2": (PRICE, None), "gpt-image-9": (PRICE, None)}
    at_work.rerate("tera-large", lambda _, model: lists[model], since=0.0, until=2e9)
    assert wrong(engine) == {}
    own = (PRICE, None)
    at_work.rerate("tera-large", lambda _, model: own if model is None else (None, None), since=0.0, until=2e9)
    assert wrong(engine) == {}
    forged = {**first.details, "other_models": []}
    by_hand(engine, change(1, details=forged))
    assert wrong(engine).keys() == {"adjustments", "prices"}


def exchange_of(engine: Engine, exchange_id: str) -> int:
    with reading(engine) as connection:
        charge = nusd("charge_usd", connection.dialect)
        return sum(map(int, connection.scalars(select(charge).where(ENTRY.exchange_id == exchange_id))))


def test_nothing_is_wrong_with_an_empty_ledger(engine: Engine) -> None:
    assert wrong(engine) == wrong(engine, since=0.0) == {}


BREAKS: dict[str, tuple[Callable[[Engine], Any], dict[str, int]]] = {
    "a second terminal entry": (
        lambda engine: copied(engine, 1, seq=1, node=None, journal_seq=None),
        {"terminal": 1, "days": 1},
    ),
    "no terminal entry": (
        lambda _: delete(ledger_entries).where(ENTRY.exchange_id == a_real_entry(5).exchange_id, ENTRY.kind == "usage"),
        {"terminal": 1, "adjustments": 1, "days": 1},
    ),
    "a kind nobody knows": (lambda _: change(1, kind="gift"), {"terminal": 1}),
    "an adjustment of another entry": (
        lambda _: change(0, "adjustment", details={"adjusts": "x", "by": "operator", "sets": {}}),
        {"adjustments": 1},
    ),
    "an adjustment of another key": (lambda _: change(0, "adjustment", key_id="key-1"), {"adjustments": 1, "days": 2}),
    "an adjustment that does not do what it says": (
        lambda _: change(0, "adjustment", completion_tokens=-1),
        {"adjustments": 1, "days": 1},
    ),
    "rerated to another price": (lambda _: change(5, "adjustment", charge_nusd=1), {"adjustments": 1, "days": 1}),
    "a balance that is a nano-dollar too high": (
        lambda _: update(balances).where(balances.c.key_id == "key-1").values(charged_nusd=balances.c.charged_nusd + 1),
        {"balances": 1},
    ),
    "a balance of one entry too many": (
        lambda _: update(balances).where(balances.c.key_id == "key-0").values(entries=balances.c.entries + 1),
        {"balances": 1},
    ),
    "no balance": (lambda _: delete(balances).where(balances.c.key_id == "key-0"), {"balances": 1}),
    "no balances": (lambda _: delete(balances), {"balances": 2}),
    "a balance of nobody": (
        lambda _: insert(balances).values({c.key: 1 for c in balances.columns} | {"key_id": "nobody"}),
        {"balances": 1},
    ),
    "a day of too many tokens": (
        lambda _: update(usage_daily).where(usage_daily.c.model == "small").values(prompt_tokens=0),
        {"balances": 1, "days": 1},
    ),
    "no days": (lambda _: delete(usage_daily), {"balances": 2, "days": 5}),
    "an entry's charge": (lambda _: change(1, charge_nusd=ENTRY.charge_nusd + 1), {"days": 1, "prices": 1}),
    "an entry's cost": (lambda _: change(1, cost_nusd=None), {"days": 1, "prices": 1}),
    "an entry's tokens": (lambda _: change(1, completion_tokens=1), {"days": 1, "prices": 1, "counts": 1}),
    "an entry's price": (lambda _: change(1, details=details(1, price=OTHER_PRICE)), {"prices": 1}),
    "an entry's price is no price": (lambda _: change(1, details=details(1, price="dear")), {"prices": 1}),
    "an entry's policy": (lambda _: change(1, details=details(1, billed="by the hour")), {"prices": 1}),
    "an entry's key": (lambda _: change(1, key_id="key-0"), {"days": 2}),
    "a negative count": (lambda _: change(1, events=-1), {"counts": 1}),
    "a negative time": (lambda _: change(1, duration_ms=-0.5), {"counts": 1}),
    "more cached than asked": (
        lambda _: change(1, prompt_tokens=3, total_tokens=54),
        {"counts": 1, "days": 1, "prices": 1},
    ),
    "more reasoning than output": (lambda _: change(1, reasoning_tokens=1_000), {"counts": 1, "days": 1}),
    "a total that is none": (lambda _: change(1, total_tokens=1), {"counts": 1, "days": 1}),
    "a negative unit": (lambda _: change(1, details=details(1, units={"searches": -1})), {"counts": 1}),
    "more written to a cache than asked": (
        lambda _: change(1, details=details(1, units={"cache_write_tokens": 1_000})),
        {"counts": 1},
    ),
    "units that are no counts": (
        lambda _: change(1, details=details(1, units={"searches": "2"})),
        {"counts": 1, "prices": 1},
    ),
    "a clock that was set back": (lambda _: update(ledger_clock).values(settled_at=LONG_AGO - 1), {"clock": 8}),
    "no clock": (lambda _: delete(ledger_clock), {"clock": 1}),
    "a lost entry": (
        lambda _: delete(ledger_entries).where(ENTRY.exchange_id == a_real_entry(2).exchange_id),
        {"days": 1, "journals": 1},
    ),
    "a receipt used twice": (lambda _: change(2, journal_seq=FIRST + 1), {"journals": 2}),
    "a receipt of another node": (lambda _: change(2, node="node-b"), {"journals": 1 + 2}),
    "a dead letter": (lambda _: a_letter("rejected: X"), {"dead letters": 1}),
    "a conflict": (lambda _: a_letter("conflict: the ledger has another content"), {"conflicts": 1}),
}  # fmt: skip


@pytest.mark.parametrize("broken", BREAKS.values(), ids=list(BREAKS))
def test_what_is_broken_by_hand_is_found(
    ledger: Engine, broken: tuple[Callable[[Engine], Any], dict[str, int]]
) -> None:
    """It, and nothing that is not broken with it; looking at what was settled since finds the same."""
    how, expected = broken
    by_hand(ledger, how(ledger))
    findings = found(ledger)
    assert {name: one.differences for name, one in findings.items() if not one.ok} == expected
    assert all(len(one.examples) == one.differences for name, one in findings.items() if name != "journals")
    assert wrong(ledger, since=LONG_AGO - 3 * 86_400) == expected


@on_both_databases
def test_money_that_is_no_money_is_found(ledger: Engine) -> None:
    """As far as the database takes it: Postgres takes only NaN, SQLite takes anything."""
    shared = ledger.dialect.name == "postgresql"
    bad = ["'NaN'"] if shared else ["'free'", "0.1234567891"]
    for number, one in enumerate(bad, 1):
        settled = a_real_entry(number).exchange_id
        with writing(ledger) as connection:
            connection.exec_driver_sql(f"UPDATE ledger_entries SET charge_usd = {one} WHERE exchange_id = '{settled}'")
    assert wrong(ledger) == {"days": 1 if shared else 2, "prices": len(bad), **({} if shared else {"numbers": 2})}


def test_tokens_that_are_no_numbers_are_found(tmp_path: Path) -> None:
    """On SQLite; the columns of Postgres take nothing else."""
    ledger = a_ledger(tmp_path)
    settle(ledger, *(a_real_entry(n) for n in range(3)))
    values = {"prompt_tokens": "1.5", "bytes": "'many'"}
    with writing(ledger) as connection:
        for number, (name, value) in enumerate(values.items(), 1):
            settled = a_real_entry(number).exchange_id
            connection.exec_driver_sql(f"UPDATE ledger_entries SET {name} = {value} WHERE exchange_id = '{settled}'")
    numbers = found(ledger)["numbers"]
    assert numbers.differences == 2
    assert numbers.examples[0] == {
        "table": "ledger_entries", "columns": ["prompt_tokens"],
        "exchange_id": a_real_entry(1).exchange_id, "kind": "usage", "seq": "0",
    }  # fmt: skip
    ledger.dispose()


def test_sums_that_are_no_money_are_found(ledger: Engine) -> None:
    value = "'NaN'" if ledger.dialect.name == "postgresql" else "0.12345678912"
    for table in ("balances", "usage_daily"):
        with writing(ledger) as connection:
            connection.exec_driver_sql(f"UPDATE {table} SET cost_usd = {value} WHERE key_id = 'key-1'")
    assert {one["table"] for one in found(ledger)["numbers"].examples} == {"balances", "usage_daily"}


def test_an_entry_that_is_there_twice_is_found(ledger: Engine) -> None:
    """The database itself refuses that, so its key has to go first."""
    row = copied(ledger, 1)
    with writing(ledger) as connection:
        connection.exec_driver_sql("ALTER TABLE ledger_entries RENAME TO kept_entries")
        connection.exec_driver_sql("CREATE TABLE ledger_entries AS SELECT * FROM kept_entries")
        connection.execute(row)
    try:
        assert wrong(ledger) == {"terminal": 1, "duplicates": 1, "days": 1, "journals": 1}
        assert found(ledger)["duplicates"].examples[0]["exchange_id"] == a_real_entry(1).exchange_id
    finally:
        with writing(ledger) as connection:
            connection.exec_driver_sql("DROP TABLE ledger_entries")
            connection.exec_driver_sql("ALTER TABLE kept_entries RENAME TO ledger_entries")


def test_examples_are_a_few_and_say_what_and_by_how_much(engine: Engine) -> None:
    settle(engine, *(a_real_entry(n, key=f"key-{n:02}") for n in range(EXAMPLES_MAX + 5)))
    by_hand(engine, update(balances).values(charged_nusd=balances.c.charged_nusd - 1_500))
    balance = found(engine)["balances"]
    assert (balance.ok, balance.differences, len(balance.examples)) == (False, EXAMPLES_MAX + 5, EXAMPLES_MAX)
    assert {one["charged_usd"] for one in balance.examples} == {"0.0000015"}
    assert set(balance.examples[0]) == {"key_id", "charged_usd"}


@pytest.mark.parametrize(
    ("flag", "usage"),
    [
        ("cached_exceeds_prompt", Usage(10, 20, 5, None, 15)),
        ("reasoning_exceeds_completion", Usage(10, None, 5, 6, 15)),
        ("total_mismatch", Usage(10, None, 5, None, 99)),
    ],
)
def test_what_a_provider_mixes_up_and_the_meter_says_is_no_difference(engine: Engine, flag: str, usage: Usage) -> None:
    settle(engine, a_real_entry(0, usage=usage, details={"flags": ["heartbeat", flag]}))
    assert wrong(engine) == {}
    settle(engine, a_real_entry(1, usage=usage), seq=FIRST + 1)
    assert wrong(engine) == {"counts": 1}
    assert found(engine)["counts"].examples[0]["wrong"] == flag


def test_reported_counts_are_compared_and_partly_estimated_ones_are_not(engine: Engine) -> None:
    """The provider's usage object is kept with both: that it is there does not excuse what was reported."""
    mixed, kept = Usage(10, 20, 5, None, 15), {"usage": {"prompt_tokens": 10}}
    estimated, reported = Reading(mixed, UsageSource.ESTIMATED), Reading(mixed, UsageSource.REPORTED)
    settle(engine, entry(replace(a_real_record(0, details=kept), reading=estimated)))
    assert wrong(engine) == {}
    settle(engine, entry(replace(a_real_record(1, details=kept), reading=reported)), seq=FIRST + 1)
    assert wrong(engine) == {"counts": 1}
    settle(engine, entry(replace(a_real_record(2), reading=estimated)), seq=FIRST + 2)
    assert wrong(engine) == {"counts": 2}


# -- journals ----------------------------------------------------------------------------------------------------


def receipts(engine: Engine, seqs: Collection[int], *, node: str = NODE, at: float = LONG_AGO) -> None:
    """An entry for each of these, settled at that time."""
    numbers = [(seq >> EPOCH_BITS) * 100 + seq % 100 for seq in seqs]
    arrivals = [Arrival(a_real_entry(number), node, seq) for number, seq in zip(numbers, seqs, strict=True)]
    assert len(a_real_store(engine).settle(arrivals).inserted) == len(arrivals)
    by_hand(engine, update(ledger_entries).where(ENTRY.journal_seq.in_(seqs)).values(settled_at=at))


def holes(engine: Engine, **options: Any) -> tuple[int, int, list[tuple[int, int]]]:
    """How many records are nowhere, how many on their way, and from where to where the first few were."""
    journals = found(engine, **options)["journals"]
    places = [(one["journal_seq"], one["to"]) for one in journals.examples]
    return journals.differences, journals.in_flight, places


def test_a_hole_is_lost_only_if_what_came_after_it_came_long_ago(engine: Engine) -> None:
    receipts(engine, [FIRST, FIRST + 1, FIRST + 5])
    assert holes(engine) == (3, 0, [(FIRST + 2, FIRST + 4)])
    assert holes(engine, grace_s=1e6) == (0, 3, [])
    by_hand(engine, update(ledger_entries).values(settled_at=time.time()))
    assert holes(engine) == (0, 3, [])
    receipts(engine, [FIRST + 9])
    assert holes(engine) == (6, 0, [(FIRST + 2, FIRST + 4), (FIRST + 6, FIRST + 8)])


def test_the_first_of_an_epoch_is_missed(engine: Engine) -> None:
    second = (2 << EPOCH_BITS) + 1
    receipts(engine, [FIRST + 1, FIRST + 2, second, second + 1])
    assert holes(engine) == (1, 0, [(FIRST, FIRST)])
    assert holes(engine, since=LONG_AGO) == (1, 0, [(FIRST, FIRST)])
    receipts(engine, [FIRST])
    assert holes(engine) == (0, 0, []), "and what may come at the end of either is not"


def test_nodes_do_not_fill_each_others_holes(engine: Engine) -> None:
    receipts(engine, [FIRST, FIRST + 2])
    receipts(engine, [FIRST + 1], node="node-b")
    assert holes(engine) == (2, 0, [(FIRST + 1, FIRST + 1), (FIRST, FIRST)])


def test_a_dead_letter_is_a_receipt(engine: Engine) -> None:
    receipts(engine, [FIRST, FIRST + 4])
    letters = [DeadLetter("rejected: X", f"{n}", node=NODE, journal_seq=FIRST + n) for n in (1, 3)]
    a_real_store(engine).settle([], [*letters, DeadLetter("rejected: Y", "1", node=NODE, journal_seq=FIRST + 1)])
    assert holes(engine) == (1, 0, [(FIRST + 2, FIRST + 2)])


def test_what_is_in_the_queue_is_not_lost(engine: Engine) -> None:
    receipts(engine, [FIRST, FIRST + 6])
    queued = [(NODE, FIRST + 2), (NODE, FIRST + 3), (NODE, FIRST + 9), ("node-b", FIRST + 4)]
    outside = RecordsInFlight(queued=queued, oldest_age_s=1.0)
    assert holes(engine, in_flight=outside) == (3, 2, [(FIRST + 1, FIRST + 1), (FIRST + 4, FIRST + 5)])


def test_a_hole_is_found_by_what_was_settled_since(engine: Engine) -> None:
    """Also one at the beginning of that time; holes of earlier times are not looked for."""
    receipts(engine, [FIRST, FIRST + 2, FIRST + 3])
    receipts(engine, [FIRST + 5, FIRST + 7], at=LONG_AGO + 100)
    assert holes(engine) == (3, 0, [(FIRST + 1, FIRST + 1), (FIRST + 4, FIRST + 4), (FIRST + 6, FIRST + 6)])
    assert holes(engine, since=LONG_AGO + 50) == (2, 0, [(FIRST + 4, FIRST + 4), (FIRST + 6, FIRST + 6)])


def test_what_was_settled_before_is_not_missed_when_it_is_looked_at_since(engine: Engine) -> None:
    """A record that came late, among others of long ago."""
    receipts(engine, [FIRST, FIRST + 2, FIRST + 3, FIRST + 4])
    receipts(engine, [FIRST + 1, FIRST + 5], at=LONG_AGO + 100)
    assert holes(engine, since=LONG_AGO + 50) == (0, 0, [])


# -- the queue and the leases ------------------------------------------------------------------------------------


def test_a_record_that_waits_too_long_is_found(engine: Engine) -> None:
    assert wrong(engine, in_flight=RecordsInFlight(queued=[(NODE, 1)], oldest_age_s=299.0)) == {}
    late = found(engine, in_flight=RecordsInFlight(queued=[(NODE, 1)], oldest_age_s=301.0))["queue"]
    assert (late.differences, late.in_flight, late.examples) == (1, 1, ({"oldest_age_s": 301.0},))


def test_a_lease_of_what_is_in_the_ledger_is_found_once_it_is_old(engine: Engine) -> None:
    settle(engine, a_real_entry(0), a_real_entry(1))
    leased = {NODE: {a_real_entry(n).exchange_id for n in range(3)}, "node-b": set[str]()}
    outside = RecordsInFlight(oldest_age_s=0.0, leased=leased)
    assert wrong(engine, in_flight=outside) == {}
    by_hand(engine, change(0, settled_at=LONG_AGO))
    leases = found(engine, in_flight=outside)["leases"]
    assert leases.examples == ({"node": NODE, "exchange_id": a_real_entry(0).exchange_id},)


# -- while it is written -----------------------------------------------------------------------------------------


@pytest.mark.hypothesis
def test_a_ledger_that_is_being_written_shows_no_difference(engine: Engine, ledger_url: str) -> None:
    """Two settlers, with batches out of order and overlapping, and somebody who adjusts and rerates, all the time."""
    batches, size = repeats(40, gate=10), 10
    until = time.monotonic() + 20

    def settle_all(reverse: bool) -> None:
        own = open_engine(ledger_url)
        store = a_real_store(own)
        for batch in range(batches)[:: -1 if reverse else 1]:
            first = batch * size
            store.settle(
                [Arrival(a_real_entry(n, key=f"key-{n % 3}"), NODE, FIRST + n) for n in range(first, first + size)]
            )
        own.dispose()

    def correct() -> None:
        own = open_engine(ledger_url)
        at_work = Corrections(own, a_real_store(own))
        prices = [(DEARER, None), (None, DEARER)]
        for turn in range(repeats(6, gate=3)):
            at_work.rerate("tera-large", lambda *_, turn=turn: prices[turn % 2], since=0.0, until=2e9)  # type: ignore[misc]
        own.dispose()

    looks = 0
    with ThreadPoolExecutor(3) as people:
        busy = [people.submit(settle_all, False), people.submit(settle_all, True), people.submit(correct)]
        while not all(one.done() for one in busy):
            assert wrong(engine) == {}
            assert wrong(engine, since=LONG_AGO) == {}
            looks += 1
            assert time.monotonic() < until
        for one in busy:
            one.result()
    assert looks > 0
    assert wrong(engine) == {}
    assert found(engine)["journals"].in_flight == 0


@on_both_databases
def test_what_is_settled_between_two_looks_is_seen_by_both_or_by_none(engine: Engine, ledger_url: str) -> None:
    """Before every other statement somebody else settles an entry, with a hole before it."""
    elsewhere = open_engine(ledger_url)
    store = a_real_store(elsewhere)
    store.settle([Arrival(a_real_entry(0), NODE, FIRST)])
    numbers = iter(range(1, 1_000))

    def settle_one(*_: object) -> None:
        if (number := next(numbers)) % 2:
            return
        one = Arrival(a_real_entry(number, key=f"key-{number}"), NODE, FIRST + number)
        assert len(store.settle([one]).inserted) == 1

    event.listen(engine, "before_cursor_execute", settle_one)
    differences = wrong(engine), wrong(engine, since=LONG_AGO)
    event.remove(engine, "before_cursor_execute", settle_one)
    elsewhere.dispose()
    assert differences == ({}, {})
    assert next(numbers) > 20


STEPS = st.lists(
    st.tuples(st.sampled_from(["settle", "sweep", "adjust", "rerate"]), st.integers(0, 3), st.integers(0, 10**6)),
    max_size=12,
)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_whatever_is_done_in_whatever_order_all_adds_up(engine: Engine, steps: list[tuple[str, int, int]]) -> None:
    emptied(engine)
    store = a_real_store(engine)
    at_work = Corrections(engine, store)
    settled: set[int] = set()
    for what, number, value in steps:
        if what == "settle":
            store.settle([Arrival(a_real_entry(number), NODE, FIRST + number)])
            settled.add(number)
        elif what == "sweep":
            usage = Usage(100, None, value % 40, None, 100 + value % 40)
            swept = a_real_entry(number, usage=usage, events=value % 30, details={"swept": True})
            store.settle([Arrival(swept)])
            settled.add(number)
        elif what == "adjust" and number in settled:
            at_work.adjust(a_real_entry(number).exchange_id, CorrectionRequest(charge_nusd=value), "because")
        elif what == "rerate":
            at_work.rerate("tera-large", lambda *_: (DEARER, None), since=0.0, until=2e9)
    assert wrong(engine) == {}
