"""What the ledger has of a provider, and a provider's bill made of it, on both databases."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from copy import deepcopy
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine

from proxy.billing.correction import CorrectionRequest
from proxy.billing.entries import LedgerEntry
from proxy.billing.money import usd_text
from proxy.ledger.settling.corrections import Corrections
from proxy.ledger.settling.store import LedgerStore
from proxy.reconciliation.provider_bill.bill import DAY_S, PARTS, BillKind, BillSubject
from proxy.reconciliation.provider_bill.check import BillVerdict, LedgerTotals, compare
from proxy.reconciliation.provider_bill.provider_sums import read_ledger_totals
from tests.ledger.entries import a_store, an_entry, arriving, stored
from tests.reconciliation.provider_bill.bills import MIDNIGHT, completions, costs, openai, page, read
from tests.support.examples import examples
from tests.support.ledgers import on_both_databases

pytestmark = pytest.mark.io

HOUR_S = 3_600
DAYS = 3
WHOLE = [(MIDNIGHT, MIDNIGHT + DAYS * DAY_S)]
FIRST, SECOND, THIRD = (date(2026, 11, day) for day in (1, 2, 3))
NONE = dict.fromkeys(("prompt_tokens", "cached_tokens", "completion_tokens", "total_tokens"), None)


def at(hours: float, number: int = 0, **differences: Any) -> LedgerEntry:
    """An exchange that began so long after the first midnight, and took a minute."""
    differences = {"duration_ms": 60_000.0, **differences}
    return an_entry(number, started_at=MIDNIGHT + hours * HOUR_S, **differences)


def sums(found: Iterable[LedgerTotals]) -> dict[tuple[int | None, int | None, bool], tuple[int, ...]]:
    """(began, ended, estimated) → requests and tokens."""
    kinds = (BillKind.REQUESTS, BillKind.PROMPT, BillKind.CACHED, BillKind.COMPLETION)
    return {
        (one.began and one.began.day, one.ended and one.ended.day, one.estimated): tuple(one.amounts[k] for k in kinds)
        for one in found
    }


def test_only_this_provider_and_this_time(engine: Engine, store: LedgerStore) -> None:
    store.settle(arriving(
        at(0, 0), at(23.5, 1), at(71.9, 2), at(72, 3), at(-0.1, 4), at(1, 5, provider="other"), at(24, 6),
    ))  # fmt: skip
    one = (1, 100, 20, 50)
    assert sums(read_ledger_totals(engine, "tera", WHOLE)) == {
        (1, 1, False): (2, 200, 40, 100),
        (2, 2, False): one,
        (3, 3, False): one,
    }
    hours = [(MIDNIGHT + day * DAY_S, MIDNIGHT + day * DAY_S + HOUR_S) for day in (0, 1)]
    assert sums(read_ledger_totals(engine, "tera", hours)) == {(1, 1, False): one, (2, 2, False): one}
    assert sums(read_ledger_totals(engine, "nobody", WHOLE)) == {}


def test_what_clients_pay_for_themselves_is_left_out(engine: Engine, store: LedgerStore) -> None:
    store.settle(arriving(at(0, 0), at(0, 1, details={"byok": {"terms": "5%"}})))
    Corrections(engine, store).adjust(an_entry(1).exchange_id, CorrectionRequest(completion_tokens=60), "miscounted")
    assert sums(read_ledger_totals(engine, "tera", WHOLE)) == {(1, 1, False): (1, 100, 20, 50)}


def test_what_goes_over_midnight_is_told_apart(engine: Engine, store: LedgerStore) -> None:
    long = {"duration_ms": 2.0 * HOUR_S * 1000}
    store.settle(
        arriving(at(-1, 0, **long), at(-3, 1, **long), at(23, 2, **long), at(71, 3, **long), at(22, 4, **long))
    )
    one = (1, 100, 20, 50)
    assert sums(read_ledger_totals(engine, "tera", WHOLE)) == {
        (None, 1, False): one, (1, 2, False): (2, 200, 40, 100), (3, None, False): one,
    }  # fmt: skip
    Corrections(engine, store).adjust(
        an_entry(2).exchange_id, CorrectionRequest(completion_tokens=60), "as on the bill"
    )
    assert sums(read_ledger_totals(engine, "tera", WHOLE))[1, 2, False] == (2, 200, 40, 110)
    just_before = at(24 - 1e-6 / HOUR_S, 5, duration_ms=0.0)
    store.settle(arriving(just_before))
    assert sums(read_ledger_totals(engine, "tera", WHOLE))[1, 1, False] == one


def test_estimates_and_what_nobody_knows_are_told_apart(engine: Engine, store: LedgerStore) -> None:
    store.settle(arriving(
        at(1, 0),
        at(1, 1, usage_source="estimated", details={"expected_error": 0.1}),
        at(1, 2, usage_source="estimated", details={}),
        at(1, 3, usage_source="none", outcome="upstream_failed", cost_nusd=None, **NONE),
        at(1, 4, usage_source="none", outcome="refused_upstream", cost_nusd=0, **NONE),
    ))  # fmt: skip
    known, guessed = sorted(read_ledger_totals(engine, "tera", WHOLE), key=lambda one: one.estimated)
    assert sums([known, guessed]) == {(1, 1, False): (1, 100, 20, 50), (1, 1, True): (2, 200, 40, 100)}
    assert known.amounts[BillKind.COST] == 123_456_789
    assert known.unknown == {**dict.fromkeys(BillKind, 1), BillKind.REQUESTS: 2}
    assert known.errors == dict.fromkeys(set(BillKind) - {BillKind.REQUESTS}, 0)
    assert guessed.unknown == dict.fromkeys(BillKind, 0)
    assert {kind: round(error, 6) for kind, error in guessed.errors.items() if error} == {
        BillKind.PROMPT: 110, BillKind.CACHED: 22, BillKind.COMPLETION: 55, BillKind.COST: round(123_456_789 * 1.1, 6),
    }  # fmt: skip


@on_both_databases
def test_parts_of_the_tokens_are_summed_from_what_is_stored(engine: Engine, store: LedgerStore) -> None:
    parts = {"cache_write_tokens": 40, "audio_prompt_tokens": 5, "image_completion_tokens": 9, "searches": 1}
    store.settle(arriving(at(1, 0, details={"units": parts}), at(1, 1, details={"units": {"cache_write_tokens": 2}})))
    (total,) = read_ledger_totals(engine, "tera", WHOLE)
    counted = {kind: total.amounts[kind] for kind in PARTS}
    assert counted == {
        BillKind.CACHE_WRITE: 42, BillKind.AUDIO_PROMPT: 5, BillKind.AUDIO_COMPLETION: 0, BillKind.IMAGE_PROMPT: 0,
        BillKind.IMAGE_COMPLETION: 9, BillKind.SEARCHES: 1,
    }  # fmt: skip
    assert [total.unknown[kind] for kind in PARTS] == [0] * len(PARTS)


def test_corrections_count_with_their_exchange(engine: Engine, store: LedgerStore) -> None:
    """On its day, whenever they are made, and what a person has set is no estimate any more; a top-up is nothing."""
    details = {"expected_error": 0.5, "billed": "prompt+output"}
    guessed = [at(1, n, usage_source="estimated", details=details) for n in (0, 1)]
    store.settle(arriving(*guessed, at(1, 9, kind="credit")))
    at_work = Corrections(engine, store)
    at_work.adjust(guessed[0].exchange_id, CorrectionRequest(prompt_tokens=90, completion_tokens=60), "as on the bill")
    at_work.adjust(guessed[1].exchange_id, CorrectionRequest(cost_nusd=7), "as on the bill")
    assert sums(read_ledger_totals(engine, "tera", WHOLE)) == {
        (1, 1, False): (1, 90, 20, 60),
        (1, 1, True): (1, 100, 20, 50),
    }
    known = {"usage_source": "reported", "details": {"restates": "x", "adjusts": "y"}}
    counts = {"prompt_tokens": -1, "completion_tokens": 2, "cached_tokens": None}
    late = at(1, 1, kind="adjustment", seq=2, **known, **counts)
    store.settle(arriving(late))
    (now,) = read_ledger_totals(engine, "tera", WHOLE)
    assert sums([now]) == {(1, 1, False): (2, 189, 40, 112)}
    assert now.amounts[BillKind.COST] == 123_456_789 + 7 + 123_456_789
    assert now.errors[BillKind.PROMPT] == 0


def a_history(chance: random.Random) -> list[LedgerEntry]:
    """Exchanges of three days and some models, some of them over a midnight between these days."""
    entries = []
    for number in range(60):
        hours, prompt = chance.uniform(0, 24 * DAYS - 0.01), chance.randrange(10_000)
        lasts_h = min(24 * DAYS - hours - 0.001, chance.expovariate(1))
        counts = {
            "prompt_tokens": prompt,
            "cached_tokens": chance.choice([None, prompt // 3]),
            "completion_tokens": chance.randrange(3_000),
            "cost_nusd": chance.randrange(10**9),
        }
        model = chance.choice(["gpt-4o", "gpt-4o-mini", "o3"])
        outcome = chance.choice(["served", "client_left"])
        entries.append(
            at(hours, number, duration_ms=lasts_h * HOUR_S * 1000, upstream_model=model, outcome=outcome, **counts)
        )
    return entries


def a_bill(entries: Iterable[LedgerEntry]) -> dict[str, Any]:
    """What a provider would export that has counted the same, and calls some models by their dated names."""
    names = {"gpt-4o": "gpt-4o-2024-08-06", "gpt-4o-mini": "gpt-4o-mini-2024-07-18", "o3": "o3"}
    said: dict[tuple[date, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for one in entries:
        row = said[datetime.fromtimestamp(one.started_at, UTC).date(), names[one.upstream_model]]
        row["num_model_requests"] += one.kind == "usage"
        row["input_tokens"] += one.prompt_tokens or 0
        row["input_cached_tokens"] += one.cached_tokens or 0
        row["output_tokens"] += one.completion_tokens or 0
        row["cost"] += one.cost_nusd or 0
    usage, money = ([openai(day=day) for day in range(DAYS)] for _ in range(2))
    for (day, model), row in sorted(said.items()):
        cost = row.pop("cost")
        usage[day.day - 1]["results"].append(completions(model, **row))
        for part, kind in ((cost // 3, "input"), (cost - cost // 3, "output")):
            money[day.day - 1]["results"].append(costs(usd_text(part), f"{model}, {kind}"))
    return {"usage": page(*usage), "money": page(*money)}


FIELDS = ("num_model_requests", "input_tokens", "input_cached_tokens", "output_tokens")


def test_a_bill_of_the_ledgers_own_sums_is_equal_and_any_other_is_not(engine: Engine) -> None:
    store = a_store(engine)
    entries = a_history(random.Random(2026))
    store.settle(arriving(*entries))
    Corrections(engine, store).adjust(
        entries[0].exchange_id, CorrectionRequest(completion_tokens=9, cost_nusd=8), "as on the bill"
    )
    ours = dict.fromkeys(BillSubject, read_ledger_totals(engine, "tera", WHOLE))
    said = a_bill(stored(engine))
    done = compare(read(list(said.values())), ours)
    assert {row.verdict for row in (*done.rows, *done.models, *done.totals)} == {BillVerdict.EQUAL}
    assert len(done.rows) == 5 * 3 * DAYS
    assert any(row.ended_later for row in done.rows), "some go over midnight"

    @given(st.data())
    @settings(max_examples=examples(150), deadline=None)
    def change(draw: st.DataObject) -> None:
        spoilt = deepcopy(said)
        results = draw.draw(st.sampled_from([bucket["results"] for one in spoilt.values() for bucket in one["data"]]))
        place = draw.draw(st.integers(0, len(results) - 1))
        by = draw.draw(st.integers(1, 10**6).flatmap(lambda n: st.sampled_from([n, -n])))
        if draw.draw(st.booleans()):
            results.pop(place)
        elif "amount" in results[place]:
            value = Decimal(results[place]["amount"]["value"]) + Decimal(by) / 10**5
            results[place]["amount"]["value"] = str(value)
        else:
            field = draw.draw(st.sampled_from(FIELDS))
            results[place][field] = max(0, results[place][field] + by) if results[place][field] else abs(by)
        assert not compare(read(list(spoilt.values())), ours).explained

    change()
