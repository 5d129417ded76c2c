"""Which of several credentials a request gets: shares, limits, rest."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from proxy.gateway.upstream.credentials import REJECTED_REST_S, WINDOW_S, Credential, CredentialPool, Use
from proxy.gateway.upstream.health import REST_S_MAX
from proxy.settings import CredentialSettings, Secret
from tests.support.examples import examples, repeats

START = 1_000.0


def pool_of(*limits: dict[str, Any]) -> CredentialPool:
    """Credentials a, b, c, … with these settings."""
    named = [
        CredentialSettings(name=chr(ord("a") + at), api_key=Secret(f"sk-canary-{at}"), **one)
        for at, one in enumerate(limits)
    ]
    pool = CredentialPool.of("p", named)
    assert pool is not None
    return pool


def taken(pool: CredentialPool, now: float, tokens: int = 0, chance: float = 0.0) -> Use:
    use = pool.take(now, tokens, lambda: chance)
    assert use is not None
    return use


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6))
def test_shares_are_those_of_the_weights(weights: list[int]) -> None:
    """Over all chances, exactly."""
    pool, total = pool_of(*({"weight": one} for one in weights)), sum(weights)
    counts = dict.fromkeys(pool.credentials, 0)
    for at in range(total):
        counts[taken(pool, START, chance=(at + 0.5) / total).credential] += 1
    assert list(counts.values()) == weights


def test_a_share_of_who_is_away_goes_to_the_others_by_their_weights() -> None:
    pool = pool_of({"weight": 10}, {"weight": 1}, {"weight": 3})
    pool.credentials[0].rests(START, 5)
    drawn = [taken(pool, START, chance=chance).credential.name for chance in (0.1, 0.3, 0.6, 0.99)]
    assert drawn == ["b", "c", "c", "c"]


def test_the_limits_of_a_minute_slide() -> None:
    pool = pool_of({"rpm": 2})
    taken(pool, START)
    taken(pool, START + 30)
    assert pool.take(START + 59, 0, lambda: 0.0) is None
    assert pool.away_s(START + 59, 0) == pytest.approx(2, abs=0.01)
    taken(pool, START + 61)
    assert pool.take(START + 61, 0, lambda: 0.0) is None


def test_tokens_count_as_reserved_and_then_as_used() -> None:
    (one,) = (pool := pool_of({"tpm": 100})).credentials
    use = taken(pool, START, 80)
    assert one.away_s(START, 30) > 0
    use.end(10)
    use.end(90)  # once only
    assert one.away_s(START, 30) == 0
    assert one.away_s(START, 91) > 0


def test_a_request_larger_than_the_limit_gets_a_minute_for_itself() -> None:
    pool = pool_of({"tpm": 100})
    taken(pool, START, 5_000).end(5_000)
    assert pool.take(START + 60, 1, lambda: 0.0) is None
    taken(pool, START + 61, 1)
    assert pool.take(START + 61, 5_000, lambda: 0.0) is None


def test_who_is_rejected_rests_and_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    pool = pool_of({}, {})
    one = pool.credentials[0]
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            one.rejected(START, 401)
        assert one.away_s(START + REJECTED_REST_S - 1, 0) > 0
        assert one.away_s(START + REJECTED_REST_S, 0) == 0
        assert (one.is_rejected, pool.all_rejected) == (True, False)
        one.accepted()
    assert [record.getMessage() for record in caplog.records] == [
        "credential a of provider p: the provider rejects it (401); other credentials are used",
        "credential a of provider p: works again",
    ]


def test_who_rests_and_is_at_a_limit_is_free_after_both() -> None:
    pool = pool_of({"rpm": 1})
    taken(pool, START)
    pool.credentials[0].rests(START, 2.0)
    assert pool.away_s(START, 0) > WINDOW_S - 1
    pool.credentials[0].rests(START, 600.0)
    assert pool.away_s(START, 0) == 600.0


def test_nothing_shows_a_secret() -> None:
    pool = pool_of({}, {})
    assert (
        "canary" not in f"{pool!r}{pool.credentials}{vars(pool.credentials[0]) | {'secret': ''}}{taken(pool, START)!r}"
    )


LIMITS = st.fixed_dictionaries(
    {"weight": st.integers(1, 5)},
    optional={"rpm": st.integers(1, 4), "tpm": st.integers(1, 100), "parallel": st.integers(1, 3)},
)


@dataclass
class Begun:
    """A request, as the test remembers it."""

    at: float
    tokens: int
    running: bool = True


class Choices(RuleBasedStateMachine):
    """Any requests, ends, rests and times, against lists of all that ever happened."""

    uses = Bundle("uses")

    @initialize(limits=st.lists(LIMITS, min_size=1, max_size=3))
    def begin(self, limits: list[dict[str, int]]) -> None:
        self.now, self.limits, self.pool = START, limits, pool_of(*limits)
        self.begun: list[list[Begun]] = [[] for _ in limits]
        self.rests_until = [0.0 for _ in limits]

    def bounds(self, at: int) -> tuple[float, float, float]:
        """Of requests, tokens and parallel requests."""
        unlimited = float("inf")
        limits = self.limits[at]
        return limits.get("rpm", unlimited), limits.get("tpm", unlimited), limits.get("parallel", unlimited)

    def within(self, at: int, seconds: float) -> list[Begun]:
        return [one for one in self.begun[at] if one.at > self.now - seconds]

    def fits(self, at: int, tokens: int, seconds: float) -> bool:
        """One more request, with a window of so many seconds."""
        rpm, tpm, parallel = self.bounds(at)
        recent = self.within(at, seconds)
        return (
            self.now >= self.rests_until[at]
            and len(recent) + 1 <= rpm
            and sum(one.tokens for one in recent) + min(tokens, tpm) <= tpm
            and sum(one.running for one in self.begun[at]) + 1 <= parallel
        )

    @rule(target=uses, tokens=st.integers(0, 150), chance=st.floats(0, 1, exclude_max=True))
    def take(self, tokens: int, chance: float) -> tuple[Use, Begun] | None:
        use = self.pool.take(self.now, tokens, lambda: chance)
        possible = range(len(self.limits))
        if use is None:
            assert not any(self.fits(at, tokens, WINDOW_S + 1) for at in possible), "one was free"
            away = self.pool.away_s(self.now, tokens)
            assert 0 < away <= max(REST_S_MAX, WINDOW_S + 1) + 1e-6
            return None
        at = self.pool.credentials.index(use.credential)
        assert self.fits(at, tokens, WINDOW_S), "it rests, or is at a limit"
        begun = Begun(self.now, int(min(tokens, self.bounds(at)[1])))
        self.begun[at].append(begun)
        return use, begun

    @rule(use=consumes(uses), tokens=st.integers(0, 150))
    def end(self, use: tuple[Use, Begun] | None, tokens: int) -> None:
        if use is not None:
            use[0].end(tokens)
            use[1].running, use[1].tokens = False, tokens

    @rule(seconds=st.sampled_from([0.25, 1.0, 7.5, 30.0, 59.0, 61.0, 4_000.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(data=st.data(), seconds=st.floats(0, 8_000))
    def rest(self, data: st.DataObject, seconds: float) -> None:
        at = data.draw(st.integers(0, len(self.limits) - 1))
        self.pool.credentials[at].rests(self.now, seconds)
        self.rests_until[at] = max(self.rests_until[at], self.now + min(seconds, REST_S_MAX))

    @rule(tokens=st.integers(0, 150))
    def wait_as_told(self, tokens: int) -> None:
        """Then one is free, but for requests that still run."""
        away = self.pool.away_s(self.now, tokens)
        if away > 1.0:  # not for a request that ends
            self.now += away
            still = self.pool.away_s(self.now, tokens)
            running = any(one.running for begun in self.begun for one in begun)
            assert still <= 1e-6 or running or still < away

    @invariant()
    def counts_are_those_of_the_window(self) -> None:
        for one, begun in zip(self.pool.credentials, self.begun, strict=True):
            assert one._running == sum(each.running for each in begun)
            assert one._requests == sum(second.requests for second in one._seconds)
            assert one._tokens == sum(second.tokens for second in one._seconds) >= 0


TestChoices = Choices.TestCase
TestChoices.settings = settings(max_examples=examples(150), stateful_step_count=repeats(50, gate=20))


def test_a_credential_is_known_by_itself() -> None:
    """Two with the same settings are two."""
    pool = pool_of({}, {})
    assert len({*pool.credentials}) == 2
    assert isinstance(pool.credentials[0], Credential)
