"""What a provider says beside what we have: which differences are explained, and by what."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from proxy.reconciliation.provider_bill.bill import Kind
from proxy.reconciliation.provider_bill.check import (
    ALL_MODELS,
    NO_MODEL,
    Compared,
    Ours,
    Row,
    Verdict,
    compare,
    matched,
)
from tests.billing.bills import completions, costs, messages, openai, page, read

FIRST, SECOND = date(2026, 11, 1), date(2026, 11, 2)
NAME = "gpt-4o"


FULL = {Kind.REQUESTS: 5, Kind.PROMPT: 1_000, Kind.CACHED: 300, Kind.COMPLETION: 70, Kind.COST: 10**9}
NONE = dict.fromkeys(Kind, 0)


def ours(
    began: date | None = FIRST, ended: date | None = FIRST, *, model: str = NAME, estimated: bool = False,
    unknown: int = 0, error: float = 0.0, amounts: dict[Kind, int] = FULL,
) -> Ours:  # fmt: skip
    """What the ledger has of a model."""
    return Ours(model, began, ended, estimated, amounts, dict.fromkeys(Kind, unknown), dict.fromkeys(Kind, error))


def prompts(count: int) -> dict[Kind, int]:
    """Only prompt tokens."""
    return {**NONE, Kind.PROMPT: count}


SEVEN = ours(amounts=prompts(7))


def against(document: Any, *mine: Ours) -> Compared:
    """Compare them."""
    bill = read(document)
    return compare(bill, dict.fromkeys(bill.subjects, mine))


def verdicts(rows: list[Row]) -> dict[tuple[int | None, str | None, Kind], Verdict]:
    """Of all that are not equal."""
    shown = {(row.day and row.day.day, row.model, row.kind): row.verdict for row in rows}
    return {key: verdict for key, verdict in shown.items() if verdict is not Verdict.EQUAL}


def test_what_is_equal_is_equal() -> None:
    done = against(page(openai(completions(NAME)), openai(day=1)), ours())
    assert [(row.day, row.model, row.kind) for row in done.rows] == [
        (FIRST, NAME, kind) for kind in (Kind.REQUESTS, Kind.PROMPT, Kind.CACHED, Kind.COMPLETION)
    ]
    assert verdicts([*done.rows, *done.models, *done.totals]) == {}
    assert done.explained


@pytest.mark.parametrize(
    ("field", "kind"),
    [
        ("num_model_requests", Kind.REQUESTS),
        ("input_tokens", Kind.PROMPT),
        ("input_cached_tokens", Kind.CACHED),
        ("output_tokens", Kind.COMPLETION),
    ],
)
@pytest.mark.parametrize("by", [1, -1])
def test_one_token_more_or_less_differs(field: str, kind: Kind, by: int) -> None:
    said = completions(NAME)
    done = against(page(openai({**said, field: said[field] + by})), ours())
    assert verdicts(done.rows) == {(1, NAME, kind): Verdict.DIFFERS}
    assert verdicts(done.models) == {(None, NAME, kind): Verdict.DIFFERS}
    assert {row.kind: row.difference for row in done.totals}[kind] == by
    assert not done.explained


@pytest.mark.parametrize(
    ("said", "verdict"),
    [(1_030, Verdict.ESTIMATES), (970, Verdict.ESTIMATES), (1_031, Verdict.DIFFERS), (969, Verdict.DIFFERS)],
)
def test_estimates_explain_three_times_their_error(said: int, verdict: Verdict) -> None:
    done = against(page(openai(completions(NAME, input_tokens=said))), ours(estimated=True, error=10.0))
    assert verdicts(done.rows) == {(1, NAME, Kind.PROMPT): verdict}
    assert done.rows[1].estimated == 1_000
    with_known = against(
        page(openai(completions(NAME, input_tokens=said + 7))), ours(estimated=True, error=10.0), SEVEN
    )
    assert verdicts(with_known.rows) == verdicts(done.rows)
    assert with_known.rows[1].estimated == 1_000
    assert done.explained is (verdict is Verdict.ESTIMATES)


@pytest.mark.parametrize(
    ("said", "explained"), [(5, True), (3, True), (2, False), (6, True), (7, False)]
)  # fmt: skip
def test_a_request_that_reported_nothing_may_be_counted_or_not(said: int, explained: bool) -> None:
    """Three were reported, two estimated, and of one nobody knows anything."""
    mine = (
        ours(amounts={**FULL, Kind.REQUESTS: 3}),
        ours(amounts={**NONE, Kind.REQUESTS: 2}, estimated=True),
        ours(amounts=NONE, unknown=1),
    )
    done = against(page(openai(completions(NAME, num_model_requests=said))), *mine)
    assert done.explained is explained
    assert [row.unknown for row in done.rows] == [1, 1, 1, 1]


def test_what_nobody_knows_explains_no_tokens() -> None:
    done = against(page(openai(completions(NAME, input_tokens=1_001))), ours(unknown=1))
    assert verdicts(done.rows) == {(1, NAME, Kind.PROMPT): Verdict.DIFFERS}


def two_days(first: int, second: int) -> Any:
    """What the provider says of two days."""
    said = (completions(NAME, input_tokens=count, num_model_requests=5) for count in (first, second))
    return page(*(openai(one, day=day) for day, one in enumerate(said)))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (1_100, 1_000, {}),
        (1_000, 1_100, {1: Verdict.MIDNIGHT, 2: Verdict.MIDNIGHT}),
        (1_040, 1_060, {1: Verdict.MIDNIGHT, 2: Verdict.MIDNIGHT}),
        (999, 1_101, {1: Verdict.DIFFERS, 2: Verdict.DIFFERS}),
        (1_101, 999, {1: Verdict.DIFFERS, 2: Verdict.DIFFERS}),
        (1_000, 1_000, {1: Verdict.MIDNIGHT, None: Verdict.DIFFERS}),
        (1_100, 1_100, {2: Verdict.MIDNIGHT, None: Verdict.DIFFERS}),
    ],
)
def test_what_goes_over_midnight_may_be_on_either_day_and_only_once(
    first: int, second: int, expected: dict[int | None, Verdict]
) -> None:
    over = ours(FIRST, SECOND, amounts=prompts(100))
    done = against(two_days(first, second), ours(), ours(SECOND, SECOND), over)
    assert verdicts([*done.rows, *done.models]) == {
        (day, NAME, Kind.PROMPT): verdict for day, verdict in expected.items()
    }
    assert done.explained is (Verdict.DIFFERS not in expected.values())


@pytest.mark.parametrize(
    ("said", "verdict"), [(900, Verdict.MIDNIGHT), (1_050, Verdict.MIDNIGHT), (1_051, Verdict.DIFFERS)]
)
def test_what_was_running_at_the_edges_may_be_on_this_bill_or_another(said: int, verdict: Verdict) -> None:
    mine = ours(amounts={**FULL, Kind.PROMPT: 900})
    before, after = ours(None, FIRST, amounts=prompts(50)), ours(FIRST, None, amounts=prompts(100))
    done = against(page(openai(completions(NAME, input_tokens=said))), mine, before, after)
    assert [row.ledger for row in done.rows if row.kind is Kind.PROMPT] == [1_000]
    assert verdicts([*done.rows, *done.models]) == {(day, NAME, Kind.PROMPT): verdict for day in (1, None)}


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        (1, None),
        ("1.000000105", Verdict.ROUNDING),
        ("0.999999895", Verdict.ROUNDING),
        ("1.000000106", Verdict.DIFFERS),
        (0, Verdict.DIFFERS),
    ],
)
def test_money_is_equal_to_what_both_round(value: Any, verdict: Verdict | None) -> None:
    """Five exchanges of ours, one amount of theirs."""
    done = against(page(openai(costs(value, f"{NAME}-2024-08-06, input"))), ours())
    assert verdicts(done.rows) == ({} if verdict is None else {(1, NAME, Kind.COST): verdict})


@pytest.mark.parametrize(("less", "verdict"), [(135, Verdict.ESTIMATES), (136, Verdict.DIFFERS)])
def test_rounding_comes_on_top_of_estimates(less: int, verdict: Verdict) -> None:
    document = page(openai(costs(f"{(10**9 - less) / 10**9:.9f}", f"{NAME}, input")))
    done = against(document, ours(estimated=True, error=10.0))
    assert verdicts(done.rows) == {(1, NAME, Kind.COST): verdict}


def test_usage_and_money_are_each_compared_with_what_they_speak_of() -> None:
    usage = page(openai(completions(NAME)), openai(completions(NAME), day=1))
    done = against([usage, page(openai(costs("1.5")))], ours(), ours(SECOND, SECOND))
    assert verdicts(done.rows) == {
        (1, ALL_MODELS, Kind.COST): Verdict.DIFFERS, (2, ALL_MODELS, Kind.COST): Verdict.DIFFERS,
    }  # fmt: skip


def test_where_no_model_is_named_a_day_is_compared_as_a_whole() -> None:
    result = completions(None, num_model_requests=10, input_tokens=2_000, input_cached_tokens=600, output_tokens=140)
    done = against(page(openai(result)), ours(), ours(model="o3"))
    assert {row.model for row in done.rows} == {ALL_MODELS}
    assert done.explained


def test_what_one_side_alone_names_has_a_line_of_its_own() -> None:
    document = page(openai(completions(NAME), completions("o3"), completions(None)))
    done = against(document, ours(), ours(model="whisper"))
    sides = {row.model: (row.provider, row.ledger) for row in done.rows if row.kind is Kind.PROMPT}
    assert sides == {NAME: (1_000, 1_000), "o3": (1_000, 0), "whisper": (0, 1_000), NO_MODEL: (1_000, 0)}
    assert not done.explained
    assert [row.difference for row in done.totals] == [5, 1_000, 300, 70]


def test_an_export_of_nothing_against_something_differs() -> None:
    assert not against(page(openai()), ours()).explained
    assert against(page(openai())).explained


def test_a_provider_that_counts_no_requests_is_not_asked_for_them() -> None:
    anthropic = page(
        {"starting_at": "2026-11-01T00:00:00Z", "ending_at": "2026-11-02T00:00:00Z", "results": [messages(NAME)]}
    )
    done = against(anthropic, ours())
    assert [row.kind for row in done.rows] == [Kind.PROMPT, Kind.CACHED, Kind.COMPLETION]
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
