"""Rules of prices: whom and when they concern, and what they make of a list."""

from __future__ import annotations

from datetime import UTC, datetime, time
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.billing.pricing.prices import configured, facts_of, pinned, price_text, rates_for, unpriced_service
from proxy.billing.pricing.quote import quote
from proxy.billing.pricing.rules import NOBODY, Hours, Payer, PricedRequest, PriceRule, PriceSide, RuledLists
from proxy.billing.record import BillableParts, Price, Rates
from proxy.billing.settlement import amount
from proxy.metering.usage import ServedAs, Usage

MILLION = 1_000_000
LIST = configured(Rates(10 * MILLION, MILLION, 40 * MILLION, image=3, request=5))
OTHER = configured(Rates(7 * MILLION, 7 * MILLION, 7 * MILLION))
ANNA = Payer("key-1", "anna", "proj_1", "search", "org_1", "acme")
DISCOUNT = PriceRule(name="acme", organizations=frozenset({"acme"}), multiply="0.9")


def request(
    payer: Payer = ANNA, *, model: str = "claude-opus-5", provider: str = "anthropic", at: str = "2026-11-23T12:00Z"
) -> PricedRequest:
    return PricedRequest(payer, model, provider, datetime.fromisoformat(at).timestamp())


def after(*rules: PriceRule, of: Price | None = LIST, **of_request: str) -> Price | None:
    return RuledLists(rules).after(of, request(**of_request), PriceSide.CHARGE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "matches"),
    [
        ({}, True),
        ({"keys": {"anna"}}, True), ({"keys": {"key-1"}}, True), ({"keys": {"Anna"}}, False),
        ({"projects": {"search"}}, True), ({"projects": {"proj_1"}}, True), ({"projects": {"proj_2"}}, False),
        ({"organizations": {"org_1"}}, True), ({"organizations": {"globex"}}, False),
        ({"models": {"claude-*"}}, True), ({"models": {"*opus*"}}, True), ({"models": {"claude-opus"}}, False),
        ({"models": {"claude.opus*"}}, False),
        ({"providers": {"anthropic"}}, True), ({"providers": {"bedrock"}}, False),
        ({"organizations": {"acme"}, "models": {"gpt-*"}}, False),
    ],
    ids=str,
)  # fmt: skip
def test_every_condition_must_hold(rule: dict[str, set[str]], matches: bool) -> None:
    made = PriceRule(name="r", multiply="2", **{name: frozenset(words) for name, words in rule.items()})  # type: ignore[arg-type]
    assert made.matches(request()) is matches
    assert made.matches(request(NOBODY)) is (matches and rule.keys() <= {"models", "providers"})


@pytest.mark.parametrize(
    ("at", "matches"),
    [
        ("2026-11-30T23:59:59Z", False), ("2026-12-01T00:00:00Z", True), ("2026-12-31T23:59:59Z", True),
        ("2027-01-01T00:00:00Z", False),
    ],
)  # fmt: skip
def test_a_rule_holds_from_one_date_to_another(at: str, matches: bool) -> None:
    begins, ends = (datetime(year, month, 1, tzinfo=UTC).timestamp() for year, month in ((2026, 12), (2027, 1)))
    assert PriceRule(name="r", begins=begins, ends=ends, multiply="2").matches(request(at=at)) is matches


@pytest.mark.parametrize(
    ("at", "matches"),
    [
        # Shanghai is eight hours ahead; the hours are half past midnight to half past eight on Monday to Friday there
        ("2026-11-22T16:29Z", False), ("2026-11-22T16:30Z", True), ("2026-11-23T00:29Z", True),
        ("2026-11-23T00:30Z", False), ("2026-11-27T16:30Z", False), ("2026-11-26T16:30Z", True),
    ],
)  # fmt: skip
def test_hours_and_weekdays_are_those_of_the_zone(at: str, matches: bool) -> None:
    weekdays = ("mon", "tue", "wed", "thu", "fri")
    hours = Hours(time(0, 30), time(8, 30))
    rule = PriceRule(
        name="off-peak", weekdays=weekdays, hours=hours, time_zone=ZoneInfo("Asia/Shanghai"), multiply="0.5"
    )
    assert rule.matches(request(at=at)) is matches


@pytest.mark.parametrize(
    ("at", "matches"),
    [
        ("2026-11-20T21:59Z", False), ("2026-11-20T22:00Z", True), ("2026-11-21T05:59Z", True),
        ("2026-11-21T06:00Z", False), ("2026-11-21T22:00Z", False), ("2026-11-20T05:00Z", False),
    ],
)  # fmt: skip
def test_a_night_belongs_to_the_day_on_which_it_begins(at: str, matches: bool) -> None:
    night = PriceRule(name="r", weekdays=("fri",), hours=Hours(time(22), time(6)), multiply="2")
    assert night.matches(request(at=at)) is matches


def test_a_discount_is_of_every_price_and_named() -> None:
    made = after(DISCOUNT)
    assert made is not None
    assert made.version == f"{LIST.version}+acme"
    assert rates_for(made, 5) == Rates(9 * MILLION, 900_000, 36 * MILLION, image=3, request=5)  # 2.7 and 4.5
    assert after(DISCOUNT, payer=NOBODY) is LIST  # type: ignore[arg-type]
    lists = RuledLists([DISCOUNT])
    assert lists.after(LIST, request(), PriceSide.CHARGE) is lists.after(LIST, request(), PriceSide.CHARGE)
    assert lists.after(LIST, request(), PriceSide.COST) is LIST


def test_a_quote_has_the_discount_that_is_sure_and_not_the_one_that_an_answer_may_say() -> None:
    made = after(DISCOUNT, PriceRule(name="slow", served_as="tier:flex", multiply="0.5"))
    assert quote(made, prompt_tokens=1_000, completion_tokens=100, nusd_max=10**9, asked=ServedAs("flex")) == (
        quote(after(DISCOUNT), prompt_tokens=1_000, completion_tokens=100, nusd_max=10**9)
    )
    assert quote(made, prompt_tokens=1_000, completion_tokens=100, nusd_max=10**9).nusd == 12_605
    assert quote(LIST, prompt_tokens=1_000, completion_tokens=100, nusd_max=10**9).nusd == 14_005


def test_the_first_list_applies_and_all_multipliers() -> None:
    rules = (
        DISCOUNT,
        PriceRule(name="own", keys=frozenset({"anna"}), price=OTHER),
        PriceRule(name="later", price=LIST),
        PriceRule(name="fee", multiply="1.1"),
        PriceRule(name="fast", served_as="speed:fast", multiply="6"),
    )
    made = after(*rules)
    assert made is not None
    assert made.version == f"{OTHER.version}+acme+own+fee+fast"
    assert rates_for(made, 5).input == round(7 * MILLION * 0.9 * 1.1)
    assert rates_for(made, 5, ServedAs(speed="fast")).input == round(7 * MILLION * 0.9 * 1.1 * 6)


def test_rules_about_an_answer_multiply_what_the_list_says_of_it() -> None:
    listed = configured(*LIST.tiers, multipliers={"tier:priority": "2"})
    rules = [PriceRule(name=name, served_as="tier:priority", multiply=by) for name, by in (("a", "1.5"), ("b", "3"))]
    made = after(*rules, of=listed)
    assert made is not None
    assert rates_for(made, 5, ServedAs("priority")).input == 10 * MILLION * 9
    assert rates_for(made, 5).input == 10 * MILLION
    assert unpriced_service(after(rules[0]), ServedAs("priority")) == []
    assert unpriced_service(after(rules[0]), ServedAs("flex")) == ["tier:flex"]


def test_the_facts_that_may_change_a_list() -> None:
    multipliers = {"speed:fast": "6", "tier:flex": "0.5", "host:eu.example": "1.1", "rule:acme": "0.9"}
    listed = configured(*LIST.tiers, service_tiers={"flex": LIST.tiers}, multipliers=multipliers)
    assert facts_of(listed) == ["tier:flex", "speed:fast"]
    assert facts_of(LIST) == []


def test_what_a_provider_states_is_the_price_times_the_rules() -> None:
    stated = PriceRule(name="as-stated", stated="1.05")
    usage = Usage(1_000, 0, 100)
    for made in (after(stated, DISCOUNT), after(stated, DISCOUNT, of=None)):
        assert made is not None
        for price in (made, pinned(price_text(made, 1_000))):
            assert amount(price, usage, BillableParts.EVERYTHING, stated_nusd=1_000_001) == 945_001  # 945,000.945
            assert amount(price, usage, BillableParts.NOTHING, stated_nusd=1_000_001) == 0
    with_list = after(stated, DISCOUNT)
    assert with_list is not None
    assert amount(with_list, usage, BillableParts.EVERYTHING) == 12_605  # 1,000 at 9, 100 at 36, 4.5 a request
    assert amount(after(stated, of=None), usage, BillableParts.EVERYTHING) is None
    assert after(DISCOUNT, of=None) is None


@given(st.lists(st.sampled_from(["0", "0.9", "1.1", "5/3", "1000"]), max_size=4), st.integers(0, 10**15))
def test_an_entry_s_price_gives_the_same_money(factors: list[str], stated: int) -> None:
    rules = [PriceRule(name=f"r{at}", multiply=by) for at, by in enumerate(factors)]
    made = after(*rules, PriceRule(name="as-stated", stated="1.05"))
    assert made is not None
    again = pinned(price_text(made, 10))
    for usage in (Usage(10, 2, 3), Usage(images=4)):
        for stated_nusd in (None, stated):
            first, second = (
                amount(price, usage, BillableParts.EVERYTHING, stated_nusd=stated_nusd) for price in (made, again)
            )
            assert first == second
