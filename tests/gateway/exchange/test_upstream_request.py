"""Who is asked after whom: any providers with any answers, against the rule in one line."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.billing.record import Attempt
from proxy.gateway.exchange.upstream_request import UpstreamRequest
from proxy.gateway.upstream.client import Answer
from proxy.gateway.upstream.credentials import Use
from proxy.gateway.upstream.failures import NotSentError, OutOfConnectionsError, UpstreamFailedError
from proxy.gateway.upstream.health import FAILURES_MAX, BreakerState
from proxy.gateway.upstream.provider import WITHOUT_USAGE_MAX, WITHOUT_USAGE_S, Provider
from proxy.gateway.upstream.provider_call import ProviderCall
from proxy.gateway.upstream.routing import Route
from proxy.settings import ProviderSettings
from tests.gateway.exchange.alone import request_alone

# What a provider says that does not know the field; or one that repeats a field of the client's own.
REFUSED = b'{"error":{"message":"unknown field: stream_options"}}'
UNREACHED, BROKEN = "unreached", "broken"
Said = int | str
SAID = st.sampled_from([UNREACHED, BROKEN, 200, 301, 400, 401, 404, 408, 422, 429, 499, 500, 503, 529])


def passes(said: Said) -> bool:
    """The rule: it gave nothing, and the fault is not the client's."""
    return said in (UNREACHED, 401, 402, 403, 404, 408, 409, 429, 499) or (isinstance(said, int) and said >= 500)


class Scripted(Answer):
    """An answer without a connection."""

    __slots__ = ()

    def __init__(self, status: int, header: str = "") -> None:
        self.status = status
        self.head = SimpleNamespace(header=lambda _: header)  # type: ignore[assignment]

    async def read(self, bytes_max: int) -> bytes | None:
        return REFUSED

    def close(self) -> None: ...


class Upstream:
    """Each provider says one thing; who was asked for what is kept."""

    def __init__(self, said: dict[str, Said]) -> None:
        self.said = said
        self.asked: list[str] = []

    async def ask(self, provider: Provider, wire: bytes) -> Any:
        name = provider.settings.name
        assert f'"model":"at-{name}"'.encode() in wire
        self.asked.append(name)
        said = self.said[name]
        if said == UNREACHED:
            raise NotSentError("not connected")
        if said == BROKEN:
            raise UpstreamFailedError("disconnected")
        return Scripted(said, "7")


def routes(count: int, sick: set[int]) -> Route:
    """So many providers, of which these are not well."""
    made = []
    for at in range(count):
        settings = ProviderSettings(name=f"p{at}", base_url="http://provider.test/v1")
        one = Route(Provider.of(settings, write_stall_s=60), f"at-p{at}", lambda *_: (None, None))
        for _ in range(FAILURES_MAX if at in sick else 0):
            one.provider.health.failed(1e12)
        made.append(one)
    return replace(made[0], others=tuple(made[1:]))


async def outcome(upstream: Upstream, route: Route, allowed: int) -> tuple[Said, UpstreamRequest, list[Attempt]]:
    """What the exchange has in the end; at most so many are passed on to."""
    attempts: list[Attempt] = []
    asking = request_alone(upstream, route)
    try:
        while not isinstance(found := await asking.ask(), Answer):
            if len(attempts) == allowed:
                found = found.stays()
                break
            attempts.append(found.attempt)
            asking.fail_over(found)
    except NotSentError:
        return UNREACHED, asking, attempts
    except UpstreamFailedError:
        return BROKEN, asking, attempts
    return found.status, asking, attempts


class Handshake(ProviderCall[Answer]):
    """A request that generates nothing, such as the handshake of a WebSocket."""

    GENERATES = False

    def __init__(self, upstream: Upstream, route: Route) -> None:
        super().__init__(route, lambda: 0.0)
        self._upstream = upstream

    async def _send(self, provider: Provider, use: Use | None) -> Answer:
        answer: Answer = await self._upstream.ask(provider, b'"model":"at-%b"' % provider.settings.name.encode())
        return answer


@given(st.lists(SAID, min_size=1, max_size=5), st.sets(st.integers(1, 4)))
def test_what_generates_nothing_is_sent_again_after_a_break(said: list[Said], sick: set[int]) -> None:
    upstream = Upstream({f"p{at}": one for at, one in enumerate(said)})
    call = Handshake(upstream, routes(len(said), sick))
    well = [at for at in range(len(said)) if at not in sick]
    ends = next((place for place, at in enumerate(well) if not passes(said[at]) and said[at] != BROKEN), len(well) - 1)
    with suppress(UpstreamFailedError):
        assert asyncio.run(call.answered(lambda _failover: True)).status == said[well[ends]]
    assert upstream.asked == [f"p{at}" for at in well[: ends + 1]]


@given(st.lists(SAID, min_size=1, max_size=5), st.sets(st.integers(1, 4)), st.integers(0, 5))
def test_each_is_asked_once_until_one_has_it(said: list[Said], sick: set[int], allowed: int) -> None:
    upstream = Upstream({f"p{at}": one for at, one in enumerate(said)})
    found, asking, attempts = asyncio.run(outcome(upstream, routes(len(said), sick), allowed))
    well = [at for at in range(len(said)) if at not in sick]
    ends = next((place for place, at in enumerate(well) if not passes(said[at])), len(well) - 1)
    expected = well[: min(ends, allowed) + 1]
    assert upstream.asked == [f"p{at}" for at in expected]
    assert (found, asking.route.provider.settings.name) == (said[expected[-1]], f"p{expected[-1]}")
    assert [(one.provider, one.status or UNREACHED) for one in attempts] == [
        (f"p{at}", said[at]) for at in expected[:-1]
    ]


class Fussy:
    """A provider that answers with these statuses in turn, each error with `REFUSED`."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.asked: list[bool] = []
        """whether each request had the field"""

    async def ask(self, _provider: Provider, wire: bytes) -> Any:
        self.asked.append(b"stream_options" in wire)
        return Scripted(self.statuses.pop(0))


async def stream_from(upstream: Fussy, route: Route) -> int:
    """One stream of a client that does not ask for usage → the status of its answer."""
    asking = request_alone(upstream, route, stream=True)
    answer = await asking.ask()
    assert isinstance(answer, Answer)
    if answer.status == 200:
        asking.accepted()
    return answer.status


async def test_a_request_that_is_refused_either_way_does_not_end_the_usage_of_others() -> None:
    route = routes(1, set())
    upstream = Fussy(400, 400, 200)
    assert await stream_from(upstream, route) == 400
    assert await stream_from(upstream, route) == 200
    assert upstream.asked == [True, False, True]


async def test_a_model_that_accepts_the_request_only_without_the_field_is_remembered_for_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr("proxy.gateway.exchange.upstream_request.monotonic", lambda: now)
    route = routes(1, set())
    upstream = Fussy(422, 200, 200, 200)
    assert [await stream_from(upstream, route) for _ in range(2)] == [200, 200]
    assert upstream.asked == [True, False, False]
    now += WITHOUT_USAGE_S
    await stream_from(upstream, route)
    assert upstream.asked[-1] is True


def test_the_remembered_models_are_bounded_and_the_oldest_goes_first() -> None:
    provider = routes(1, set()).provider
    for at in range(WITHOUT_USAGE_MAX + 1):
        provider.accepted_only_without_usage(f"m{at}", float(at))
    remembered = [at for at in range(WITHOUT_USAGE_MAX + 1) if not provider.injects(f"m{at}", WITHOUT_USAGE_MAX)]
    assert remembered == list(range(1, WITHOUT_USAGE_MAX + 1))


async def test_a_failure_of_this_machine_is_no_provider_s_and_no_other_is_asked() -> None:
    class Exhausted(Fussy):
        async def ask(self, _provider: Provider, wire: bytes) -> Any:
            self.asked.append(True)
            raise OutOfConnectionsError("not connected: Too many open files")

    upstream, route = Exhausted(), routes(2, set())
    for _ in range(FAILURES_MAX):
        with pytest.raises(OutOfConnectionsError):
            await stream_from(upstream, route)
    assert len(upstream.asked) == FAILURES_MAX
    assert route.provider.health.state(0.0) is BreakerState.CLOSED
