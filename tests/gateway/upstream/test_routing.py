"""Routes and models: a closed table, matched exactly; nothing leads to a provider without a meter."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.gateway.exchange.upstream_request import target
from proxy.gateway.upstream import routing
from proxy.gateway.upstream.provider import Origin, Provider
from proxy.gateway.upstream.routing import Models, Route, by_health, supporting, weighted_order
from proxy.http.errors import ApiError
from proxy.http.server import Routes
from proxy.metering.dialect import Dialect
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.settings import ProviderSettings

CHAT = "/v1/chat/completions"


async def serve(*_: Any) -> Any:
    """Serves nobody."""


def routes() -> Routes:
    """As they are in the product, as far as this file needs them."""
    made = Routes()
    made.metered(OPENAI_CHAT, serve)
    made.local("GET", "/v1/models", serve)
    made.local("GET", "/healthz", serve)
    return made


@pytest.mark.parametrize(
    "dialect",
    [
        None,
        "openai.chat",
        object(),
        dataclasses.replace(OPENAI_CHAT, tally=None),
        dataclasses.replace(OPENAI_CHAT, tally="later"),
        dataclasses.replace(OPENAI_CHAT, framings=()),
    ],
    ids=["none", "name", "object", "no tally", "not callable", "no framing"],
)
def test_a_route_without_a_meter_cannot_be_registered(dialect: Any) -> None:
    made = Routes()
    with pytest.raises(TypeError, match="meter"):
        made.metered(dialect, serve)
    with pytest.raises(ApiError):
        made.find("POST", CHAT)


def test_a_dialect_must_state_its_meter_and_its_reader_of_requests() -> None:
    required = [one.name for one in dataclasses.fields(Dialect) if one.default is dataclasses.MISSING]
    assert {"tally", "facts"} <= set(required)


def test_no_route_is_registered_twice() -> None:
    made = routes()
    with pytest.raises(ValueError, match="twice"):
        made.metered(OPENAI_CHAT, serve)
    with pytest.raises(ValueError, match="twice"):
        made.local("POST", CHAT, serve)


@pytest.mark.parametrize("raw_path", [CHAT, CHAT + "?", CHAT + "?api-version=1", CHAT + "?/../admin"])
def test_found(raw_path: str) -> None:
    assert routes().find("POST", raw_path) is not None


@pytest.mark.parametrize(
    "raw_path",
    ["", "/", "*", CHAT + "//", "//" + CHAT, CHAT.upper(), CHAT[1:], CHAT + "%20", CHAT + ";a", CHAT + "#a",
     CHAT + "\0", "/v1/chat/./completions", "/v1/../v1/chat/completions", "/v1/chat%2fcompletions",
     "/v1/chat/completion%73",
     "http://test" + CHAT, "/v1///chat/completions", "/v1//healthz", "?" + CHAT, "/v1/v1" + CHAT,
     "/v1/healthz", "/v1/v1/healthz",
     "/openai/healthz", "/v2/chat/completions", "/openai" + CHAT.upper()],
)  # fmt: skip
def test_a_path_is_itself_or_nothing(raw_path: str) -> None:
    with pytest.raises(ApiError) as refusal:
        routes().find("POST", raw_path)
    assert (refusal.value.status, refusal.value.code) == (404, "unknown_url")


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", CHAT), ("post", CHAT), ("PUT", CHAT), ("HEAD", CHAT), ("POST", "/v1/models"), ("GET", "/v1" + CHAT)],
)
def test_another_method_is_a_405_that_names_those_allowed(method: str, path: str) -> None:
    with pytest.raises(ApiError) as refusal:
        routes().find(method, path)
    assert refusal.value.status == 405
    assert refusal.value.headers == (("Allow", "GET" if path == "/v1/models" else "POST"),)


def test_head_is_served_where_get_is() -> None:
    made = routes()
    assert made.find("HEAD", "/healthz") is made.find("GET", "/healthz")


@pytest.mark.parametrize(
    ("spelled", "meant"),
    [
        *[(spelled, CHAT) for spelled in (CHAT + "/", "/" + CHAT, "/" + CHAT + "/", "/chat/completions", "/v1" + CHAT,
                                          "//chat/completions", "/chat/completions/", CHAT + "/?a=b",
                                          "/v1//chat/completions", "/v1//chat/completions/")],
        ("/openai/responses", "/openai/v1/responses"), ("/openai/responses/", "/openai/v1/responses"),
        ("/models", "/v1/models"), ("/toy/say/", "/toy/say"), ("/openai/v1//responses", "/openai/v1/responses"),
    ],
)  # fmt: skip
def test_base_urls_as_people_type_them(spelled: str, meant: str) -> None:
    made = Routes()
    served: list[str] = []
    for path in (CHAT, "/openai/v1/responses", "/v1/models", "/toy/say"):
        made.local("POST", path, lambda *_, path=path: served.append(path))  # type: ignore[arg-type, misc, return-value]
    made.find("POST", spelled)(None, None)  # type: ignore[arg-type]
    assert (served, made.allowed(spelled)) == ([meant], ("POST",))


@given(st.text(max_size=30), st.text(max_size=60))
def test_whatever_is_asked_is_found_or_refused(method: str, raw_path: str) -> None:
    refusal = _refusal(method, raw_path)
    assert refusal is None or refusal.status in {404, 405}
    assert refusal is None or refusal.body()


def _refusal(method: str, raw_path: str) -> ApiError | None:
    try:
        routes().find(method, raw_path)
    except ApiError as refusal:
        return refusal
    return None


# -- models ------------------------------------------------------------------------------------------------------


def route_to(upstream_model: str, provider: str = "electron") -> Route:
    """A route with a provider of that name."""
    settings = ProviderSettings(name=provider, base_url="http://provider.test/v1")
    return Route(Provider.of(settings, write_stall_s=60), upstream_model, lambda *_: (None, None))


NAMED = {"big": route_to("big-2026"), "small": route_to("small", "tera")}


def pattern(name: str) -> Route | None:
    """What `any/*` would do."""
    prefix, _, rest = name.partition("/")
    return route_to(rest) if prefix == "any" and rest else None


def test_a_name_leads_where_the_configuration_says() -> None:
    models = Models(NAMED, pattern)
    found = models.route("big")
    assert found is not None
    assert (found.upstream_model, found.provider.settings.name) == ("big-2026", "electron")
    passed = models.route("any/thing/else")
    assert passed is not None
    assert passed.upstream_model == "thing/else"
    assert models.route("any/") is models.route("Big") is models.route("") is None


def test_no_name_is_an_address() -> None:
    models = Models(NAMED, lambda name: route_to(name))
    found = models.route("http://evil.test/v1")
    assert found is not None
    assert found.provider.origin == Origin("provider.test", 80, tls=False)
    (wire,) = found.provider.request(OPENAI_CHAT, target(OPENAI_CHAT, found.upstream_model, "/"), [b"{}"], "")
    assert wire.startswith(b"POST /v1/chat/completions HTTP/1.1\r\nHost: provider.test\r\n")
    assert b"evil" not in wire


def test_names_that_clients_invent_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "PASSED_NAMES_MAX", 10)
    models = Models(NAMED, pattern)
    for number in range(100):
        found = models.route(f"any/{number}")
        assert found is not None
        assert found.upstream_model == str(number)
    assert len(models._remembered) == 10
    for number in range(100):
        assert models.route(f"nowhere/{number}") is None
    assert len(models._remembered) == 10


def test_a_name_that_is_known_is_not_made_again() -> None:
    asked: list[str] = []

    def passed(name: str) -> Route | None:
        asked.append(name)
        return pattern(name)

    models = Models(NAMED, passed)
    assert models.route("any/x") is models.route("any/x")
    assert models.route("big") is NAMED["big"]
    assert asked == ["any/x"]


# -- several providers -------------------------------------------------------------------------------------------


def ways(*weights: int | None) -> list[Route]:
    """A provider for each weight."""
    return [dataclasses.replace(route_to(str(at), f"p{at}"), weight=weight) for at, weight in enumerate(weights)]


def named(routes: Iterable[Route]) -> list[str]:
    """Their providers' names."""
    return [one.provider.settings.name for one in routes]


def all_of(found: Route | float) -> list[str]:
    """Whom it asks, in order."""
    assert isinstance(found, Route)
    return named((found, *found.others))


def test_without_weights_the_order_is_the_models_and_the_sick_are_left_out() -> None:
    three = ways(None, None, None)
    route = dataclasses.replace(three[0], others=tuple(three[1:]))
    assert all_of(by_health(route, 0.0, _nobody)) == ["p0", "p1", "p2"]
    three[0].provider.health.rests(100.0, 30.0)
    assert all_of(by_health(route, 100.0, _nobody)) == ["p1", "p2"]
    assert all_of(by_health(route, 130.0, _nobody)) == ["p0", "p1", "p2"]
    for seconds, one in zip((30.0, 20.0, 40.0), three, strict=True):
        one.provider.health.rests(100.0, seconds)
    assert by_health(route, 110.0, _nobody) == 10.0, "the soonest of them"


def _nobody() -> float:
    raise AssertionError("nothing is left to chance")


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_a_draw_has_everybody_once(weights: list[int], chance: Random) -> None:
    drawn_ = named(weighted_order(ways(*weights), chance.random))
    assert sorted(drawn_) == [f"p{at}" for at in range(len(weights))]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_each_is_first_as_often_as_its_share_says(weights: list[int]) -> None:
    """Every share of the line from 0 to 1 is tried once, at its middle."""
    total = sum(weights)
    firsts = [named(weighted_order(ways(*weights), lambda part=part: (part + 0.5) / total))[0] for part in range(total)]
    assert [firsts.count(f"p{at}") for at in range(len(weights))] == weights


def test_only_those_that_speak_the_language_are_asked() -> None:
    deaf = ProviderSettings(name="deaf", base_url="http://provider.test/v1", dialects=())
    first = dataclasses.replace(
        route_to("a"), others=(Route(Provider.of(deaf, write_stall_s=60), "b", _free), route_to("c", "tera"))
    )
    assert all_of(supporting(first, OPENAI_CHAT) or 0.0) == ["electron", "tera"]
    assert supporting(dataclasses.replace(first, others=()), OPENAI_CHAT) == dataclasses.replace(first, others=())
    assert supporting(first.others[0], OPENAI_CHAT) is None


def _free(_at: float, _payer: object, _other: str | None = None) -> tuple[None, None]:
    return None, None
