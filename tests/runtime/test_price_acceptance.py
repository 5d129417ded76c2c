"""What applies of a fetched price list: never a price that moves too far, and nothing over the operator's own."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.billing.pricing.book import PriceBook
from proxy.billing.pricing.rules import NOBODY
from proxy.billing.record import Price
from proxy.runtime.machine.price_acceptance import LOOK_BACK_S, Accepted, Named, accept
from proxy.runtime.machine.price_file import PriceFileError, book_from
from proxy.runtime.machine.price_lookup import PriceLookup
from proxy.settings import parse
from tests.support.examples import examples
from tests.support.price_lists import listed, price_list

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC).timestamp()
DAY_S = 86_400.0
BEFORE = price_list(
    listed("plain", {"input_mtok": 1, "output_mtok": 4}), listed("other", {"input_mtok": 2, "output_mtok": 8})
)


def accepted(old: bytes, new: bytes, used: tuple[Named, ...] = ()) -> Accepted:
    return accept(new, "new", book_from(old, "old"), used, NOW)


def price(book: PriceBook, model: str, at: float = NOW) -> Price | None:
    return book.price(provider="lister", base_url="", model=model, at=at)


def usd(book: PriceBook, model: str, at: float = NOW) -> tuple[float, float] | None:
    """Input and output."""
    found = price(book, model, at)
    return None if found is None else (found.tiers[0].input / 1e9, found.tiers[0].output / 1e9)


DATED = [
    {"prices": {"input_mtok": 1, "output_mtok": 4}},
    {"constraint": {"start_date": "2027-01-01"}, "prices": {"input_mtok": 9, "output_mtok": 4}},
]
HOURLY = [
    {"prices": {"input_mtok": 1, "output_mtok": 4}},
    {"constraint": {"start_time": "20:00:00Z", "end_time": "22:00:00Z"}, "prices": {"input_mtok": 9, "output_mtok": 4}},
]
TIERED = {"input_mtok": {"base": 1, "tiers": [{"start": 200_000, "price": 9}]}, "output_mtok": 4}
FAR: tuple[tuple[str, Any, str], ...] = (
    ("dearer", {"input_mtok": 3.01, "output_mtok": 4}, "input moves too far, 1 → 3.01"),
    ("cheaper", {"input_mtok": 1, "output_mtok": 1.33}, "output moves too far, 4 → 1.33"),
    ("free", {"input_mtok": 0, "output_mtok": 4}, "input moves too far, 1 → 0"),
    ("without output", {"input_mtok": 1}, "output disappears"),
    ("nothing", {}, "input disappears"),
    ("negative", {"input_mtok": -1, "output_mtok": 4}, "input moves too far, 1 → -1"),
    ("long prompts", TIERED, "input moves too far, 1 → 9"),
    ("the cache", {"input_mtok": 1, "output_mtok": 4, "cache_read_mtok": 9}, "cached_input moves too far, 1 → 9"),
    ("writing to the cache", {"input_mtok": 1, "output_mtok": 4, "cache_write_mtok": 9}, "cache_write moves too far"),
    ("from a later day on", DATED, "input moves too far, 1 → 9"),
    ("at some hours", HOURLY, "input moves too far, 1 → 9"),
)


@pytest.mark.parametrize(("prices", "reason"), [one[1:] for one in FAR], ids=[one[0] for one in FAR])
def test_a_model_whose_price_moves_too_far_keeps_its_prices(prices: Any, reason: str) -> None:
    new = price_list(listed("plain", prices), listed("other", {"input_mtok": 3, "output_mtok": 8}))
    found = accepted(BEFORE, new)
    assert [(one.model, reason in one.refused) for one in found.refused] == [("plain", True)]
    assert [str(one).partition("; since ")[0] for one in found.changes] == [
        "lister other: cached_input: 2 → 3, input: 2 → 3"
    ]
    for at in (NOW, NOW - LOOK_BACK_S, NOW + 60 * DAY_S, NOW + 9 * 3600.0):
        assert usd(found.book, "plain", at) == (1, 4)
    assert usd(found.book, "other") == (3, 8)
    again = accept(new, "new", found.book, (), NOW + DAY_S)
    assert (again.content, again.changes) == (found.content, []), "a list that stays the same stays the same"


def test_what_moves_little_applies_from_its_time_on() -> None:
    later = [DATED[0], {**DATED[1], "prices": {"input_mtok": 2, "output_mtok": 4}}]
    found = accepted(BEFORE, price_list(listed("plain", later), listed("other", {"input_mtok": 2, "output_mtok": 8})))
    assert found.refused == []
    assert str(found.changes[0]) == "lister plain: cached_input: 1 → 2, input: 1 → 2; since 2027-01-01T00:00Z"
    assert (usd(found.book, "plain"), usd(found.book, "plain", NOW + 60 * DAY_S)) == ((1, 4), (2, 4))


def test_new_models_are_priced_and_free_ones_are_not() -> None:
    more = (
        listed("new", {"input_mtok": 100, "output_mtok": 300}),
        listed("embeds", {"input_mtok": 0.02}),
        listed("gift", {"input_mtok": 0, "output_mtok": 1}),
        listed("in cents", {"input_mtok": 1e9, "output_mtok": 1}),
    )
    old = [listed("plain", {"input_mtok": 1, "output_mtok": 4}), listed("other", {"input_mtok": 2, "output_mtok": 8})]
    found = accepted(BEFORE, price_list(*old, *more))
    assert [one.model for one in found.refused] == ["gift", "in cents"]
    assert [usd(found.book, one) for one in ("new", "embeds", "gift", "in cents")] == [
        (100, 300),
        (0.02, 0),
        None,
        None,
    ]


def test_models_and_providers_that_disappear_stay() -> None:
    found = accepted(BEFORE, price_list(listed("plain", {"input_mtok": 1, "output_mtok": 4})))
    assert usd(found.book, "other") == (2, 8)
    assert [str(one).partition("; ")[2] for one in found.refused] == ["refused: input disappears"]
    found = accepted(BEFORE, price_list(listed("x", {"input_mtok": 1, "output_mtok": 4}), provider="another"))
    assert (usd(found.book, "plain"), usd(found.book, "other")) == ((1, 4), (2, 8))
    few = PriceBook([one for one in PriceBook().providers if one.id in ("deepseek", "cohere")], "package")
    kept = accept(BEFORE, "new", few, (), NOW)
    assert [one for one in kept.book.providers if one.id != "lister"] == few.providers, "in the JSON form and back"


CATCH_ALL = listed("dear", {"input_mtok": 50, "output_mtok": 90}, {"starts_with": "o"})


@pytest.mark.parametrize(
    ("new", "used", "says"),
    [
        (price_list(CATCH_ALL, *(listed(one, {"input_mtok": 1, "output_mtok": 4}) for one in ("plain", "other"))), (),
         "new: other of lister would have the prices of another model: input moves too far, 2 → 50"),
        (price_list(listed("plain", {"input_mtok": 1, "output_mtok": 4}, {"equals": "renamed"}),
                    listed("other", {"input_mtok": 2, "output_mtok": 8})), (),
         "new: plain of lister would have the prices of another model: input disappears"),
        (price_list(listed("plain", {"input_mtok": 1, "output_mtok": 4}),
                    listed("other", {"input_mtok": 2, "output_mtok": 8}), at="https://elsewhere/"),
         (("mine", "https://lister/v1", "plain"),), "new: plain of mine would"),
        (price_list(*(listed("plain", {"input_mtok": price}) for price in (1, 9))), (), "has plain of lister twice"),
        (b"<html>", (), "is no price book"),
        (b"[]", (), "has no providers"),
        (b'{"prices": 1}', (), "is no price book"),
        (b"[" * 100_000, (), "is no price book"),
        (price_list(listed("plain", {"input_mtok": "NaN"})), (), "is no price book"),
        (price_list(listed("plain", {"input_mtok": 1}, {"regex": "("})), (), "is no price book"),
        (price_list(listed("plain", {"input_mtok": 1}), at="("), (), "is no price book"),
    ],
)  # fmt: skip
def test_a_list_is_refused_as_a_whole(new: bytes, used: tuple[Named, ...], says: str) -> None:
    with pytest.raises(PriceFileError) as refused:
        accepted(BEFORE, new, used)
    assert says in str(refused.value)


AMOUNTS = st.sampled_from([1, 2, 3, 3.1])
TIERED_AMOUNTS = st.builds(
    lambda base, over: {"base": base, "tiers": [{"start": 1000, "price": over}]}, AMOUNTS, AMOUNTS
)
PRICES = st.fixed_dictionaries(
    {"input_mtok": AMOUNTS | AMOUNTS | TIERED_AMOUNTS},
    optional={"output_mtok": AMOUNTS, "cache_read_mtok": AMOUNTS, "requests_kcount": AMOUNTS | st.just(0)},
)
WHEN = st.sampled_from([
    {"start_date": "2026-11-10"}, {"start_date": "2026-12-24"}, {"start_time": "08:00:00Z", "end_time": "16:00:00Z"},
])  # fmt: skip
DATED_PRICES = st.builds(
    lambda first, then, when: [{"prices": first}, {"prices": then, "constraint": when}], PRICES, PRICES, WHEN
)
NAMES = ("one", "one-mini")
MATCHES = st.sampled_from([None, None, None, {"starts_with": "one"}, {"equals": "one-mini"}])
MODELS = st.lists(
    st.builds(listed, st.sampled_from(NAMES), PRICES | PRICES | DATED_PRICES, MATCHES),
    max_size=2,
    unique_by=lambda one: one["id"],
)
OWN = parse(
    yaml.safe_dump({
        "providers": {"lister": {"base_url": "https://lister/v1"}},
        "models": {"own": {"provider": "lister", "upstream_model": "one", "price": {"input": 7, "output": 7},
                           "cost": {"input": 5, "output": 5}}, "*": {"provider": "lister"}},
    }), env={}, folder=Path(),
)  # fmt: skip
TIMES = (NOW, NOW - LOOK_BACK_S + 1, NOW - 5 * DAY_S, NOW + 40 * DAY_S, NOW + 40 * DAY_S - 8 * 3600.0)


def rates(found: Price | None) -> dict[tuple[int, str], int]:
    """(Length of the prompt, name) → a price that the list has."""
    if found is None:
        return {}
    lacked = {"input": {"input", "cached_input"}, "output": {"output"}}
    without = set().union(*(lacked[name] for name in found.lacking))
    return {
        (length, name): rate
        for length in (0, 1001)
        for tier in [one for one in found.tiers if one.above_prompt_tokens <= length][-1:]
        for name in ("input", "cached_input", "output", "request")
        if name not in without and (rate := getattr(tier, name)) is not None
    }


@settings(max_examples=examples(300), deadline=None)
@given(MODELS, MODELS)
def test_of_any_two_lists_no_price_moves_too_far_and_the_operators_own_stay(
    old: list[dict[str, Any]], new: list[dict[str, Any]]
) -> None:
    before = book_from(price_list(*old), "old")
    used = [("lister", "https://lister/v1", name) for name in NAMES]
    try:
        after = accept(price_list(*new), "new", before, used, NOW).book
    except PriceFileError:
        return
    for at in TIMES:
        for name in NAMES:
            was, now = (rates(book.price(provider="lister", base_url="https://lister/v1", model=name, at=at))
                        for book in (before, after))  # fmt: skip
            for kind, rate in was.items():
                assert rate / 3 <= now[kind] <= rate * 3
            assert all(rate > 0 for kind, rate in now.items() if kind not in was)
        own = [PriceLookup(OWN, book).admitted(OWN.models["own"], "", OWN.models["own"].providers[0], at, NOBODY, "own")
               for book in (before, after)]  # fmt: skip
        assert own[0] == own[1]
