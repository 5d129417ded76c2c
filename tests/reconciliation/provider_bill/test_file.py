"""Exports of providers, read: every shape, and every way to be wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from proxy.reconciliation.provider_bill import bill as bills
from proxy.reconciliation.provider_bill import file as bill_file
from proxy.reconciliation.provider_bill.bill import DAY_S, BillError, BillKind, BillSubject, ProviderBill
from tests.reconciliation.provider_bill.bills import (
    MIDNIGHT,
    anthropic,
    cents,
    completions,
    costs,
    messages,
    openai,
    page,
    read,
)

FIRST = date(2026, 11, 1)
TOKENS = {BillKind.PROMPT: 1_000, BillKind.CACHED: 300, BillKind.COMPLETION: 70}


def usage(bill: ProviderBill) -> dict[tuple[int, str | None], dict[BillKind, Any]]:
    """(day of November, model) → what was used."""
    return {(day.day, model): dict(said) for (day, model), said in bill.amounts(BillSubject.USAGE).items()}


def money(bill: ProviderBill) -> dict[tuple[int, str | None], Decimal]:
    """(day of November, model) → USD."""
    amounts = bill.amounts(BillSubject.COST).items()
    return {(day.day, model): Decimal(said[BillKind.COST]) for (day, model), said in amounts}


def test_openai_usage() -> None:
    bill = read(page(openai(completions(), completions("o3")), openai(completions(), day=1)))
    rows = [(1, "gpt-4o-2024-08-06"), (1, "o3"), (2, "gpt-4o-2024-08-06")]
    spoken = {BillKind.AUDIO_PROMPT: 0, BillKind.AUDIO_COMPLETION: 0}
    assert usage(bill) == {row: {BillKind.REQUESTS: 5, **TOKENS, **spoken} for row in rows}
    assert bill.subjects == (BillSubject.USAGE,)
    counted = (BillKind.REQUESTS, BillKind.PROMPT, BillKind.CACHED, BillKind.COMPLETION)
    assert bill.kinds(BillSubject.USAGE) == (*counted, *spoken)
    assert bill.spans(BillSubject.USAGE) == [(MIDNIGHT, MIDNIGHT + 2 * DAY_S)]
    assert not bill.goes_on


def test_openai_says_what_parts_the_tokens_have() -> None:
    """As in the SDK's `usage_completions_response`; what an older export lacks is not compared."""
    parts = {
        "input_cache_write_tokens": 40, "input_uncached_tokens": 660, "input_text_tokens": 600,
        "input_audio_tokens": 50, "input_cached_audio_tokens": 10, "input_image_tokens": 30,
        "input_cached_image_tokens": 7, "output_image_tokens": 20, "output_text_tokens": 45, "output_audio_tokens": 5,
    }  # fmt: skip
    tiers = [completions(service_tier=tier, **parts) for tier in ("default", "priority")]
    bill = read(page(openai(*tiers)))
    assert usage(bill)[1, "gpt-4o-2024-08-06"] == {
        BillKind.REQUESTS: 10, **{kind: 2 * count for kind, count in TOKENS.items()},
        BillKind.CACHE_WRITE: 80, BillKind.AUDIO_PROMPT: 120, BillKind.AUDIO_COMPLETION: 10,
        BillKind.IMAGE_PROMPT: 74, BillKind.IMAGE_COMPLETION: 40,
    }  # fmt: skip
    with pytest.raises(BillError, match="input_uncached_tokens"):
        read(page(openai(completions(input_uncached_tokens="many"))))


def test_results_of_one_model_and_day_are_added_up() -> None:
    hours = [
        openai(completions(project_id=name), begin=h * 3600, end=(h + 1) * 3600) for h in (0, 1, 5) for name in "ab"
    ]
    bill = read([page(*hours[:2], has_more=True), page(*hours[2:])])
    assert usage(bill)[1, "gpt-4o-2024-08-06"][BillKind.PROMPT] == 6_000
    assert bill.spans(BillSubject.USAGE) == [(MIDNIGHT, MIDNIGHT + 7200), (MIDNIGHT + 18_000, MIDNIGHT + 21_600)]
    assert not bill.goes_on
    assert read(page(has_more=True, next_page="page_x")).goes_on


def test_openai_embeddings_are_input_only() -> None:
    counts = {"input_tokens": 9, "num_model_requests": 2}
    result = {"object": "organization.usage.embeddings.result", "model": "e", **counts}
    bill = read(page(openai(result)))
    assert usage(bill) == {(1, "e"): {BillKind.REQUESTS: 2, BillKind.PROMPT: 9}}
    assert bill.kinds(BillSubject.USAGE) == (BillKind.REQUESTS, BillKind.PROMPT)


@pytest.mark.parametrize(
    ("name", "unit"), [("images", "images"), ("audio_speeches", "characters"), ("audio_transcriptions", "seconds")]
)
def test_openai_counts_media_in_its_own_units(name: str, unit: str) -> None:
    """Only the requests are compared: the ledger counts most of these models in tokens."""
    result = {"object": f"organization.usage.{name}.result", unit: 700, "num_model_requests": 3, "model": "m"}
    bill = read(page(openai(result)))
    assert usage(bill) == {(1, "m"): {BillKind.REQUESTS: 3}}
    assert {("m", BillKind.PROMPT), ("m", BillKind.COMPLETION)} <= bill.not_counted
    with pytest.raises(BillError, match=rf"results\[0\]\.{unit}: must be a whole number"):
        read(page(openai({**result, unit: "7"})))


def test_openai_searches_are_counted_and_their_requests_are_not() -> None:
    """The requests are those of the completions."""
    result = {"object": "organization.usage.web_searches.result", "num_model_requests": 2, "num_requests": 6}
    bill = read(page(openai(completions("o3"), {**result, "model": "o3"})))
    counted = usage(bill)[1, "o3"]
    assert (counted[BillKind.REQUESTS], counted[BillKind.SEARCHES]) == (5, 6)


def pulled(document: Any, path: str = "organization/usage/completions", *, days: int = 1, **wrong: Any) -> Any:
    """A page as `--pull` saves it."""
    return {"path": path, "begin_s": MIDNIGHT, "end_s": MIDNIGHT + days * DAY_S, "page": document, **wrong}


def test_what_a_pulled_page_has_no_bucket_for_is_zero() -> None:
    """It names what was requested, so a page without results is compared, too."""
    lines = [pulled(page(openai(completions())), days=3), pulled(page(), "organization/costs", days=3)]
    content = b"\n".join(json.dumps(line).encode() for line in lines)
    bill = read(content)
    assert bill.subjects == (BillSubject.USAGE, BillSubject.COST)
    whole = [(MIDNIGHT, MIDNIGHT + 3 * DAY_S)]
    assert [bill.spans(subject) for subject in bill.subjects] == [whole, whole]
    assert bill.kinds(BillSubject.COST) == (BillKind.COST,)
    assert money(bill) == {}
    later = read(content, since=MIDNIGHT + 1.0, until=MIDNIGHT + 2.5 * DAY_S)
    assert later.spans(BillSubject.COST) == [(MIDNIGHT + DAY_S, MIDNIGHT + 2 * DAY_S)]
    assert usage(later) == {}
    assert later.kinds(BillSubject.USAGE) == (
        BillKind.REQUESTS, BillKind.PROMPT, BillKind.CACHED, BillKind.COMPLETION
    )  # fmt: skip


def test_each_endpoint_of_a_pull_has_a_last_page() -> None:
    first, last = (pulled(page(openai(completions()), has_more=more)) for more in (True, False))
    costs_of = pulled(page(), "organization/costs")
    assert read([first, costs_of]).goes_on
    assert not read([first, {**last, "page": page()}, costs_of]).goes_on


def test_openai_costs() -> None:
    results = [
        costs(0.1, "gpt-4o-2024-08-06, input"),
        costs("0.000004500000000000000000000000000000000", "gpt-4o-2024-08-06, cached input"),
        costs(2, "web search tool calls"),
        costs("-0.5", "evals | gpt-4o-2024-08-06, input"),
        costs(3, "tuning, training, o3, input"),
        costs(1e-07),
    ]
    bill = read(page(openai(*results)))
    assert money(bill) == {
        (1, "gpt-4o-2024-08-06"): Decimal("0.1000045"),
        (1, "web search tool calls"): 2,
        (1, "evals | gpt-4o-2024-08-06"): Decimal("-0.5"),
        (1, "tuning, training, o3"): 3,
        (1, None): Decimal("1e-7"),
    }
    assert (bill.subjects, bill.kinds(BillSubject.COST)) == ((BillSubject.COST,), (BillKind.COST,))
    assert [bill.lines(FIRST, name) for name in ("gpt-4o-2024-08-06", None, "o3")] == [2, 1, 0]


def test_anthropic_usage_and_costs() -> None:
    bill = read([
        page(anthropic(messages(), messages("claude-3", cache_creation=None, server_tool_use=None)), anthropic(day=1)),
        page(
            anthropic(cents("123.78912"), cents("0.001"), cents("100", None, description="Web Search"), day=1),
            anthropic(cents("7", None, description=None, cost_type=None), day=2),
        ),
    ])  # fmt: skip
    assert usage(bill) == {
        (1, "claude-sonnet-4-20250514"): {**TOKENS, BillKind.CACHE_WRITE: 200, BillKind.SEARCHES: 2},
        (1, "claude-3"): {**TOKENS, BillKind.PROMPT: 800, BillKind.CACHE_WRITE: 0},
    }
    assert money(bill) == {
        (2, "claude-sonnet-4-20250514"): Decimal("1.2379012"),
        (2, "Web Search"): 1,
        (3, None): Decimal("0.07"),
    }
    assert bill.spans(BillSubject.USAGE) == [(MIDNIGHT, MIDNIGHT + 2 * DAY_S)]
    assert bill.spans(BillSubject.COST) == [(MIDNIGHT + DAY_S, MIDNIGHT + 3 * DAY_S)]


PAGES = [page(openai(completions(), day=day)) for day in range(3)]


@pytest.mark.parametrize(
    "content",
    [
        json.dumps(PAGES).encode(),
        json.dumps(PAGES, indent=2).encode(),
        b"\n".join(json.dumps(one).encode() for one in PAGES) + b"\n",
        b"\xef\xbb\xbf" + b"\r\n\r\n".join(json.dumps(one).encode() for one in PAGES),
        b"\n" + json.dumps(page(*(one["data"][0] for one in PAGES)), indent=1).encode(),
    ],
    ids=["list", "indented list", "lines", "lines of another system", "one indented page"],
)
def test_a_file_is_a_page_a_list_or_lines(content: bytes) -> None:
    bill = read(content)
    assert [day for day, _ in usage(bill)] == [1, 2, 3]
    assert bill.spans(BillSubject.USAGE) == [(MIDNIGHT, MIDNIGHT + 3 * DAY_S)]


def test_an_export_of_nothing_is_compared_all_the_same() -> None:
    bill = read(page(openai(), openai(day=1)))
    assert bill.subjects == (BillSubject.USAGE,)
    assert bill.kinds(BillSubject.USAGE) == (BillKind.PROMPT, BillKind.COMPLETION)
    assert bill.spans(BillSubject.USAGE) == [(MIDNIGHT, MIDNIGHT + 2 * DAY_S)]
    assert read(page()).spans(BillSubject.USAGE) == []


def test_only_whole_buckets_within_the_time_that_is_asked_for() -> None:
    days = page(*(openai(completions(), day=day) for day in range(4)))
    bill = read(days, since=MIDNIGHT + 1.0, until=MIDNIGHT + 3.5 * DAY_S)
    assert [day for day, _ in usage(bill)] == [2, 3]
    assert bill.spans(BillSubject.USAGE) == [(MIDNIGHT + DAY_S, MIDNIGHT + 3 * DAY_S)]


def third(**differences: Any) -> Any:
    """A page whose fourth bucket has a wrong result."""
    return page(*(openai(day=day) for day in range(3)), openai(completions(**differences), day=3))


def without(result: dict[str, Any], name: str) -> dict[str, Any]:
    return {field: value for field, value in result.items() if field != name}


WRONG: dict[str, tuple[Any, str]] = {
    "a text for a number": (third(input_tokens="7"), "data[3].results[0].input_tokens: must be a whole number"),
    "a fraction": (third(output_tokens=7.5), "data[3].results[0].output_tokens: must be a whole number"),
    "true": (third(num_model_requests=True), "data[3].results[0].num_model_requests: must be a whole number"),
    "below zero": (third(input_cached_tokens=-1), "data[3].results[0].input_cached_tokens: must be"),
    "beyond reason": (third(input_tokens=10**30), "data[3].results[0].input_tokens: must be"),
    "audio": (third(input_audio_tokens="much"), "data[3].results[0].input_audio_tokens: must be"),
    "null": (third(input_tokens=None), "data[3].results[0].input_tokens: must be a whole number"),
    "a model that is none": (third(model=7), "data[3].results[0].model: must be a text"),
    "a model that does things to a terminal": (third(model="\x1b[2J"), "data[3].results[0].model: must be a text"),
    "a missing field": (page(openai(without(completions(), "input_tokens"))), "data[0].results[0].input_tokens: is"),
    "no requests": (page(openai(without(completions(), "num_model_requests"))), "data[0].results[0].num_model_req"),
    "no object": (page(openai(without(completions(), "object"))), "data[0].results[0].object: is missing"),
    "vector stores": (third(object="organization.usage.vector_stores.result"), "data[3].results[0].object: is not sup"),
    "an object that is none": (third(object=["organization.costs.result"]), "data[3].results[0].object: is not supp"),
    "images": (third(object="organization.usage.images.result"), "data[3].results[0].images: is missing"),
    "a result that is none": (page(openai(7)), "data[0].results[0]: must be an object"),
    "results that are none": (page({**openai(), "results": {}}), "data[0].results: must be a list"),
    "no results": (page(without(openai(), "results")), "data[0].results: is missing"),
    "no end": (page(without(openai(), "end_time")), "data[0].end_time: is missing"),
    "two days": (page(openai(end=2 * DAY_S)), "data[0].end_time: must be after the start"),
    "no time": (page(openai(begin=5, end=5)), "data[0].end_time: must be after the start"),
    "over midnight": (page(openai(begin=43_200, end=43_200 + DAY_S)), "data[0].end_time: must be after the start"),
    "no bucket": (page({"results": []}), "data[0]: is not a bucket"),
    "twice": (page(openai(completions()), openai(completions())), "data[1]: is a duplicate"),
    "twice in a list": ([page(openai(completions()))] * 2, "[1].data[0]: is a duplicate"),
    "euros": (page(openai(costs(1, "a", "eur"))), "data[0].results[0].amount.currency: must be usd"),
    "no amount": (page(openai(costs("free"))), "data[0].results[0].amount.value: must be a decimal number"),
    "not a number": (page(openai(costs("NaN"))), "data[0].results[0].amount.value: must be a decimal number"),
    "too much": (page(openai(costs(1e300))), "data[0].results[0].amount.value: must be a decimal number"),
    "a bare amount": (page(openai({**costs(1), "amount": 1})), "data[0].results[0].amount: must be an object"),
    "no output": (page(anthropic(without(messages(), "output_tokens"))), "data[0].results[0].output_tokens: is"),
    "cache": (page(anthropic(messages(cache_creation=7))), "data[0].results[0].cache_creation"),
    "cache writes": (
        page(anthropic(messages(cache_creation={"ephemeral_1h_input_tokens": "7"}))),
        "data[0].results[0].cache_creation.ephemeral_1h_input_tokens: must be",
    ),
    "pounds": (page(anthropic(cents("1", currency="GBP"))), "data[0].results[0].currency: must be USD"),
    "no time at all": (page({**anthropic(), "starting_at": "today"}), "data[0].starting_at: must be a time"),
    "after all time": (page({**anthropic(), "starting_at": "9999-12-31T23:59:59-23:00"}), "data[0].ending_at: must be"),
    "long after": (page({**openai(), "start_time": 10**15, "end_time": 10**15 + 1}), "data[0].end_time: must be"),
    "before all time": (page({**anthropic(), "starting_at": "0001-01-01T00:00+23:00"}), "data[0].ending_at: must be"),
    "an error": ({"error": {"message": "sk-secret"}}, "data: is missing"),
    "no page": (7, "must be an object"),
    "no pages": ([7], "[0]: must be an object"),
    "not JSON": (b"day,tokens\n1,2\n", "is not JSON"),
    "deep": (b"[" * 100_000, "is not JSON"),
    "a huge exponent": (b'{"data": 1e99999999999999999999}', "is not JSON"),
    "cut off": (json.dumps(page(openai())).encode()[:-9], "is not JSON"),
    "empty": (b"", "is not JSON"),
    "a bad line": (b'{"data":[]}\n{"data":[', "line 2: is not JSON"),
    "a bad field of a line": (b'{"data":[]}\n\n{"data":[{"start_time":"1","end_time":1}]}', "line 3: data[0].start_"),
    "a line that is none": (b'{"data":[]}\n7', "line 2: must be an object"),
    "another endpoint": (pulled(page(), "organization/users"), "path: is not an endpoint"),
    "no endpoint": ({"page": page()}, "path: is missing"),
    "a page that is none": (pulled([page()]), "organization/usage/completions: must be an object"),
    "half a day": (pulled(page(), end_s=MIDNIGHT + 60), "end_s: must be 1 to 1000 whole days"),
    "no day": (pulled(page(), days=0), "end_s: must be 1 to 1000 whole days"),
    "ages": (pulled(page(), days=1_001), "end_s: must be 1 to 1000 whole days"),
    "a pulled bucket": (pulled(page(openai(7))), "organization/usage/completions: data[0].results[0]: must be"),
}  # fmt: skip


@pytest.mark.parametrize(("document", "words"), WRONG.values(), ids=list(WRONG))
def test_what_is_wrong_is_said_with_its_place_and_not_quoted(document: Any, words: str) -> None:
    with pytest.raises(BillError) as refusal:
        read(document)
    said = str(refusal.value)
    assert said.startswith(words)
    assert "secret" not in said
    assert len(said) < 200


def test_overlapping_buckets_are_refused() -> None:
    bill = read(page(openai(completions()), openai(completions(), begin=3600, end=7200)))
    with pytest.raises(BillError, match="two buckets of usage overlap at 2026-11-01T01:00:00"):
        bill.spans(BillSubject.USAGE)


@pytest.mark.parametrize(
    "content", [lambda one: one, lambda one: json.dumps(PAGES[0]).encode() + b"\n" + one], ids=["document", "line"]
)
def test_a_document_has_a_largest_size(content: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bill_file, "DOCUMENT_BYTES_MAX", 1000)
    read(b"\n".join(json.dumps(one).encode() for one in PAGES))
    with pytest.raises(BillError, match="longer than"):
        read(content(json.dumps(page(openai(), padding="x" * 1000), indent=None).encode()))


def test_there_is_a_largest_number_of_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bills, "ROWS_MAX", 3)
    read(page(openai(*(completions(f"m{n}") for n in range(3)))))
    with pytest.raises(BillError, match="more than 3"):
        read(page(openai(*(completions(f"m{n}") for n in range(4)))))
