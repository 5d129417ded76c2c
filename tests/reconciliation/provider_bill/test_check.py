"""What a provider says beside what we have: which differences are explained, and by what."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from proxy.reconciliation.provider_bill.bill import PARTS, BillKind
from proxy.reconciliation.provider_bill.check import (
    ALL_MODELS,
    NO_MODEL,
    BillVerdict,
    Compared,
    LedgerTotals,
    Row,
    compare,
    matched,
)
from tests.reconciliation.provider_bill.bills import anthropic, completions, costs, messages, openai, page, read

FIRST, SECOND = date(2026, 11, 1), date(2026, 11, 2)
NAME = "gpt-4o"


FULL = {
    BillKind.REQUESTS: 5,
    BillKind.PROMPT: 1_000,
    BillKind.CACHED: 300,
    BillKind.COMPLETION: 70,
    BillKind.COST: 10**9,
}
NONE = dict.fromkeys(BillKind, 0)


def ours(
    began: date | None = FIRST, ended: date | None = FIRST, *, model: str = NAME, estimated: bool = False,
    unknown: int = 0, error: float = 0.0, amounts: dict[BillKind, int] = FULL,
) -> LedgerTotals:  # fmt: skip
    unknown_of = {**dict.fromkeys(BillKind, unknown), **dict.fromkeys(PARTS, 0)}
    errors = dict.fromkeys(BillKind, error)
    return LedgerTotals(model, began, ended, estimated, {**NONE, **amounts}, unknown_of, errors)


def prompts(count: int) -> dict[BillKind, int]:
    return {**NONE, BillKind.PROMPT: count}


SEVEN = ours(amounts=prompts(7))


def against(document: Any, *mine: LedgerTotals) -> Compared:
    bill = read(document)
    return compare(bill, dict.fromkeys(bill.subjects, mine))


def verdicts(rows: list[Row]) -> dict[tuple[int | None, str | None, BillKind], BillVerdict]:
    """Of all that are not equal."""
    shown = {(row.day and row.day.day, row.model, row.kind): row.verdict for row in rows}
    return {key: verdict for key, verdict in shown.items() if verdict is not BillVerdict.EQUAL}


def test_what_is_equal_is_equal() -> None:
    done = against(page(openai(completions(NAME)), openai(day=1)), ours())
    assert [(row.day, row.model, row.kind) for row in done.rows] == [
        (FIRST, NAME, kind) for kind in (BillKind.REQUESTS, BillKind.PROMPT, BillKind.CACHED, BillKind.COMPLETION)
    ]
    assert verdicts([*done.rows, *done.models, *done.totals]) == {}
    assert done.explained


@pytest.mark.parametrize(
    ("field", "kind"),
    [
        ("num_model_requests", BillKind.REQUESTS),
        ("input_tokens", BillKind.PROMPT),
        ("input_cached_tokens", BillKind.CACHED),
        ("output_tokens", BillKind.COMPLETION),
    ],
)
@pytest.mark.parametrize("by", [1, -1])
def test_one_token_more_or_less_differs(field: str, kind: BillKind, by: int) -> None:
    said = completions(NAME)
    done = against(page(openai({**said, field: said[field] + by})), ours())
    assert verdicts(done.rows) == {(1, NAME, kind): BillVerdict.DIFFERS}
    assert verdicts(done.models) == {(None, NAME, kind): BillVerdict.DIFFERS}
    assert {row.kind: row.difference for row in done.totals}[kind] == by
    assert not done.explained


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        (1_030, BillVerdict.ESTIMATES),
        (970, BillVerdict.ESTIMATES),
        (1_031, BillVerdict.DIFFERS),
        (969, BillVerdict.DIFFERS),
    ],
)
def test_estimates_explain_three_times_their_error(said: int, verdict: BillVerdict) -> None:
    done = against(page(openai(completions(NAME, input_tokens=said))), ours(estimated=True, error=10.0))
    assert verdicts(done.rows) == {(1, NAME, BillKind.PROMPT): verdict}
    assert done.rows[1].estimated == 1_000
    more = page(openai(completions(NAME, input_tokens=said + 7)))
    with_known = against(more, ours(estimated=True, error=10.0), SEVEN)
    assert verdicts(with_known.rows) == verdicts(done.rows)
    assert with_known.rows[1].estimated == 1_000
    assert done.explained is (verdict is BillVerdict.ESTIMATES)


@pytest.mark.parametrize(
    ("said", "explained"), [(5, True), (3, True), (2, False), (6, True), (7, False)]
)  # fmt: skip
def test_a_request_that_reported_nothing_may_be_counted_or_not(said: int, explained: bool) -> None:
    """Three were reported, two estimated, and of one nobody knows anything."""
    mine = (
        ours(amounts={**FULL, BillKind.REQUESTS: 3}),
        ours(amounts={**NONE, BillKind.REQUESTS: 2}, estimated=True),
        ours(amounts=NONE, unknown=1),
    )
    done = against(page(openai(completions(NAME, num_model_requests=said))), *mine)
    assert done.explained is explained
    assert [row.unknown for row in done.rows] == [1, 1, 1, 1]


def test_what_nobody_knows_explains_no_tokens() -> None:
    done = against(page(openai(completions(NAME, input_tokens=1_001))), ours(unknown=1))
    assert verdicts(done.rows) == {(1, NAME, BillKind.PROMPT): BillVerdict.DIFFERS}


def two_days(first: int, second: int) -> Any:
    said = (completions(NAME, input_tokens=count, num_model_requests=5) for count in (first, second))
    return page(*(openai(one, day=day) for day, one in enumerate(said)))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (1_100, 1_000, {}),
        (1_000, 1_100, {1: BillVerdict.MIDNIGHT, 2: BillVerdict.MIDNIGHT}),
        (1_040, 1_060, {1: BillVerdict.MIDNIGHT, 2: BillVerdict.MIDNIGHT}),
        (999, 1_101, {1: BillVerdict.DIFFERS, 2: BillVerdict.DIFFERS}),
        (1_101, 999, {1: BillVerdict.DIFFERS, 2: BillVerdict.DIFFERS}),
        (1_000, 1_000, {1: BillVerdict.MIDNIGHT, None: BillVerdict.DIFFERS}),
        (1_100, 1_100, {2: BillVerdict.MIDNIGHT, None: BillVerdict.DIFFERS}),
    ],
)
def test_what_goes_over_midnight_may_be_on_either_day_and_only_once(
    first: int, second: int, expected: dict[int | None, BillVerdict]
) -> None:
    over = ours(FIRST, SECOND, amounts=prompts(100))
    done = against(two_days(first, second), ours(), ours(SECOND, SECOND), over)
    assert verdicts([*done.rows, *done.models]) == {
        (day, NAME, BillKind.PROMPT): verdict for day, verdict in expected.items()
    }
    assert done.explained is (BillVerdict.DIFFERS not in expected.values())


@pytest.mark.parametrize(
    ("said", "verdict"), [(900, BillVerdict.MIDNIGHT), (1_050, BillVerdict.MIDNIGHT), (1_051, BillVerdict.DIFFERS)]
)
def test_what_was_running_at_the_edges_may_be_on_this_bill_or_another(said: int, verdict: BillVerdict) -> None:
    mine = ours(amounts={**FULL, BillKind.PROMPT: 900})
    before, after = ours(None, FIRST, amounts=prompts(50)), ours(FIRST, None, amounts=prompts(100))
    done = against(page(openai(completions(NAME, input_tokens=said))), mine, before, after)
    assert [row.ledger for row in done.rows if row.kind is BillKind.PROMPT] == [1_000]
    assert verdicts([*done.rows, *done.models]) == {(day, NAME, BillKind.PROMPT): verdict for day in (1, None)}


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        (1, None),
        ("1.000000105", BillVerdict.ROUNDING),
        ("0.999999895", BillVerdict.ROUNDING),
        ("1.000000106", BillVerdict.DIFFERS),
        (0, BillVerdict.DIFFERS),
    ],
)
def test_money_is_equal_to_what_both_round(value: Any, verdict: BillVerdict | None) -> None:
    """Five exchanges of ours, one amount of theirs."""
    done = against(page(openai(costs(value, f"{NAME}-2024-08-06, input"))), ours())
    assert verdicts(done.rows) == ({} if verdict is None else {(1, NAME, BillKind.COST): verdict})


@pytest.mark.parametrize(("less", "verdict"), [(135, BillVerdict.ESTIMATES), (136, BillVerdict.DIFFERS)])
def test_rounding_comes_on_top_of_estimates(less: int, verdict: BillVerdict) -> None:
    document = page(openai(costs(f"{(10**9 - less) / 10**9:.9f}", f"{NAME}, input")))
    done = against(document, ours(estimated=True, error=10.0))
    assert verdicts(done.rows) == {(1, NAME, BillKind.COST): verdict}


def test_usage_and_money_are_each_compared_with_what_they_speak_of() -> None:
    usage = page(openai(completions(NAME)), openai(completions(NAME), day=1))
    done = against([usage, page(openai(costs("1.5")))], ours(), ours(SECOND, SECOND))
    assert verdicts(done.rows) == {
        (1, ALL_MODELS, BillKind.COST): BillVerdict.DIFFERS, (2, ALL_MODELS, BillKind.COST): BillVerdict.DIFFERS,
    }  # fmt: skip


def test_where_no_model_is_named_a_day_is_compared_as_a_whole() -> None:
    result = completions(None, num_model_requests=10, input_tokens=2_000, input_cached_tokens=600, output_tokens=140)
    done = against(page(openai(result)), ours(), ours(model="o3"))
    assert {row.model for row in done.rows} == {ALL_MODELS}
    assert done.explained


def test_what_one_side_alone_names_has_a_line_of_its_own() -> None:
    document = page(openai(completions(NAME), completions("o3"), completions(None)))
    done = against(document, ours(), ours(model="whisper"))
    sides = {row.model: (row.provider, row.ledger) for row in done.rows if row.kind is BillKind.PROMPT}
    assert sides == {NAME: (1_000, 1_000), "o3": (1_000, 0), "whisper": (0, 1_000), NO_MODEL: (1_000, 0)}
    assert not done.explained
    assert [row.difference for row in done.totals] == [5, 1_000, 300, 70]


def test_an_export_of_nothing_against_something_differs() -> None:
    assert not against(page(openai()), ours()).explained
    assert against(page(openai())).explained


def images(model: str) -> dict[str, Any]:
    """Counted in images, not in tokens."""
    return {"object": "organization.usage.images.result", "images": 9, "num_model_requests": 5, "model": model}


def test_tokens_of_a_model_that_is_counted_in_images_are_left_out() -> None:
    both = page(openai(completions(NAME), images("dall-e-3")))
    done = against(both, ours(), ours(model="dall-e-3"))
    assert [row.kind for row in done.rows if row.model == "dall-e-3"] == [BillKind.REQUESTS]
    assert done.explained
    assert not against(both, ours(), ours(model="dall-e-3", amounts={**FULL, BillKind.REQUESTS: 6})).explained
    counted = against(page(openai(completions(NAME), images(NAME))), ours(amounts={**FULL, BillKind.REQUESTS: 10}))
    assert [row.kind for row in counted.rows] == [
        BillKind.REQUESTS, BillKind.PROMPT, BillKind.CACHED, BillKind.COMPLETION
    ]  # fmt: skip
    assert counted.explained


def test_a_provider_that_counts_no_requests_is_not_asked_for_them() -> None:
    done = against(
        page(anthropic(messages(NAME))), ours(amounts={**FULL, BillKind.CACHE_WRITE: 200, BillKind.SEARCHES: 2})
    )
    counted = [BillKind.PROMPT, BillKind.CACHED, BillKind.COMPLETION, BillKind.CACHE_WRITE, BillKind.SEARCHES]
    assert [row.kind for row in done.rows] == counted
    assert done.explained


@pytest.mark.parametrize(
    ("theirs", "mine", "expected"),
    [
        ({"gpt-4o"}, {"gpt-4o"}, {}),
        ({"gpt-4o-2024-08-06"}, {"gpt-4o"}, {"gpt-4o-2024-08-06": "gpt-4o"}),
        ({"gpt-4o-2024-08-06"}, {"gpt-4o-2024-08-06"}, {}),
        ({"gpt-4o-mini-2024-07-18"}, {"gpt-4o", "gpt-4o-mini"}, {"gpt-4o-mini-2024-07-18": "gpt-4o-mini"}),
        ({"gpt-4o-mini-2024-07-18"}, {"gpt-4o"}, {}),
        ({"gpt-4o", "gpt-4o-2024-08-06"}, {"gpt-4o", "gpt-4o-2024-08-06"}, {}),
        ({"gpt-4o-2024-08-06"}, {"gpt-4o", "gpt-4o-2024-08-06"}, {"gpt-4o-2024-08-06": "gpt-4o"}),
        ({"gpt-4o-2024-08-06", "gpt-4o-2024-11-20"}, {"gpt-4o"},
         {"gpt-4o-2024-08-06": "gpt-4o", "gpt-4o-2024-11-20": "gpt-4o"}),
        ({"claude-sonnet-4-20250514"}, {"claude-sonnet-4"}, {"claude-sonnet-4-20250514": "claude-sonnet-4"}),
        ({"claude-3-5-haiku-20241022"}, {"claude-3-5-haiku-latest"},
         {"claude-3-5-haiku-20241022": "claude-3-5-haiku-latest"}),
        ({"claude-3-5-haiku@20241022"}, {"claude-3-5-haiku"}, {"claude-3-5-haiku@20241022": "claude-3-5-haiku"}),
        ({"gpt-4-0613"}, {"gpt-4"}, {"gpt-4-0613": "gpt-4"}),
        ({"mistral-large-2411"}, {"mistral-large"}, {"mistral-large-2411": "mistral-large"}),
        ({"llama3-8192"}, {"llama3"}, {}),
        ({"ft:gpt-4o-2024-08-06:acme::1"}, {"ft:gpt-4o"}, {}),
        ({"gpt-4"}, {"gpt-4-0613"}, {}),
    ],
)  # fmt: skip
def test_names(theirs: set[str], mine: set[str], expected: dict[str, str]) -> None:
    assert matched(theirs, mine) == {one: one for one in theirs | mine} | expected
