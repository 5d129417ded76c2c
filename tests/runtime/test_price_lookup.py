"""What a model costs whom, whoever answers: as a request is admitted, so is it rated again."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from proxy.billing.pricing.book import PriceBook
from proxy.billing.pricing.prices import configured
from proxy.billing.pricing.rules import NOBODY, Payer
from proxy.billing.record import Rates
from proxy.gateway.upstream.provider import Provider
from proxy.runtime.machine.price_lookup import PriceLookup
from proxy.runtime.proxy.model_table import model_table
from proxy.runtime.proxy.tokenizers import Tokenizers
from proxy.settings import Settings, parse
from proxy.settings.estimates import EstimateSettings
from tests.ledger.entries import an_entry

AT = 1_793_000_000.0
LISTED = {"openai": "gpt-4o-mini", "groq": "llama-3.1-8b-instant"}
URLS = {"openai": "https://api.openai.com/v1", "groq": "https://api.groq.com/openai/v1", "own": "http://own.test/v1"}
OWN = configured(Rates(1_000_000_000, 1_000_000_000, 2_000_000_000))


@pytest.fixture(scope="module")
def book() -> PriceBook:
    """It takes a while to load."""
    return PriceBook()


def settings_with(rules: Any = None, **model: Any) -> Settings:
    """A model `m` of these fields, and another name of it."""
    document: dict[str, Any] = {
        **({"price_rules": rules} if rules else {}),
        "providers": {name: {"base_url": url} for name, url in URLS.items()},
        "models": {"m": model, "nick": {"alias_of": "m"}},
    }
    return parse(yaml.safe_dump(document), env={}, folder=Path())


TARGETS = [
    {"provider": "openai", "upstream_model": LISTED["openai"]},
    {"provider": "groq", "upstream_model": LISTED["groq"]},
    {"provider": "own", "cost": {"input": 1, "output": 2}},
]


@pytest.mark.parametrize("price", [None, {"input": 1, "output": 2}])
@pytest.mark.parametrize("name", ["m", "nick"])
def test_the_price_is_the_models_and_the_cost_is_of_who_answered(book: PriceBook, name: str, price: Any) -> None:
    settings = settings_with(providers=TARGETS, price=price)
    providers = {one: Provider.of(at, write_stall_s=60) for one, at in settings.providers.items()}
    first = model_table(settings, book, providers, Tokenizers((), EstimateSettings())).route(name)
    assert first is not None
    listed = [book.price(provider=one, base_url=URLS[one], model=model, at=AT) for one, model in LISTED.items()]
    assert None not in listed
    assert listed[0] != listed[1]
    for way, cost in zip((first, *first.others), [*listed, OWN], strict=True):
        assert way.prices(AT, NOBODY) == (OWN if price else listed[0], cost)
        entry = an_entry(model=name, provider=way.provider.settings.name, upstream_model=way.upstream_model)
        assert PriceLookup(settings, book)(replace(entry, started_at=AT)) == way.prices(AT, NOBODY)


def test_what_is_rated_again_was_served_by_one_who_is_gone(book: PriceBook) -> None:
    """Then the price of the book is that of who served it, as before there were several."""
    settings = settings_with(providers=TARGETS[1:])
    entry = an_entry(model="m", provider="openai", upstream_model=LISTED["openai"], started_at=AT)
    was = book.price(provider="openai", base_url=URLS["openai"], model=LISTED["openai"], at=AT)
    assert PriceLookup(settings, book)(entry) == (was, was)


def test_an_announced_price_holds_from_its_day_on_and_a_past_month_keeps_its_own(book: PriceBook) -> None:
    """At admission, and when it is rated again."""
    dated = {"input": 1, "output": 2, "changes": {"2026-12-01": {"input": 3, "output": 4}}}
    settings = settings_with(providers=[TARGETS[2] | {"cost": dated}], price=dated)
    providers = {one: Provider.of(at, write_stall_s=60) for one, at in settings.providers.items()}
    route = model_table(settings, book, providers, Tokenizers((), EstimateSettings())).route("m")
    assert route is not None
    new = configured(Rates(3_000_000_000, 3_000_000_000, 4_000_000_000))
    december = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
    for at, price in ((december - 1, OWN), (december, new), (december + 1e8, new)):
        assert route.prices(at, NOBODY) == (price, price)
        past = replace(an_entry(1), model="m", provider="own", upstream_model="m", started_at=at)
        assert PriceLookup(settings, book)(past) == (price, price)


def test_a_price_that_is_kept_is_the_one_of_the_moment_and_the_payer(book: PriceBook) -> None:
    """Whatever the order of the requests: the clock may be set back, and a key or an account get another name."""
    dated = {"input": 1, "output": 2, "changes": {"2026-12-01T00:00:07.500Z": {"input": 3, "output": 4}}}
    rules = {
        "acme": {"organizations": ["acme"], "multiply": 0.5, "begins": "2026-12-01T00:00:20Z"},
        "early": {"keys": ["anna"], "multiply": 3, "ends": "2026-11-30T23:59:59.250Z"},
        "night": {"multiply": 2, "hours": "00:01-00:02", "time_zone": "UTC"},
    }
    settings = settings_with(rules, providers=[TARGETS[2]], price=dated)
    providers = {one: Provider.of(at, write_stall_s=60) for one, at in settings.providers.items()}
    route = model_table(settings, book, providers, Tokenizers((), EstimateSettings())).route("m")
    assert route is not None
    first = datetime(2026, 11, 30, 23, 59, 58, tzinfo=UTC)
    times = [(first + timedelta(seconds=at / 4)).timestamp() for at in range(4 * 130)]
    payers = (NOBODY, Payer("k", "anna"), Payer("k", "anna", organization="acme"), Payer("k", "bert", "p", "search"))
    asked = [(at, payer) for at in times for payer in payers]
    random.Random(1).shuffle(asked)
    model = settings.models["m"]
    found = {
        (at, payer): (route.prices(at, payer), lookup.admitted(model, "", model.providers[0], at, payer, "m"))
        for lookup in [PriceLookup(settings, book)]
        for at, payer in [*asked[:600], *sorted(asked)]
    }
    assert all(kept == now for kept, now in found.values())
    assert len({str(now) for _, now in found.values()}) > 5
