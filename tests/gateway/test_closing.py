"""What an entry is told of how its numbers were made, and what is learned from one that was reported."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from proxy.gateway.exchange.open_exchange import OpenExchange, _details
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.metered import Metered
from proxy.metering.usage import Evidence, Reading, Usage, UsageSource

SEEN = {"text_events": 3, "chars_latin": 12, "blanks": 2}
HALF = {"prompt_tokens": 9}


@pytest.mark.parametrize(
    ("raw", "source", "told"),
    [
        (None, UsageSource.ESTIMATED, {"evidence": SEEN}),
        (HALF, UsageSource.ESTIMATED, {"usage": HALF, "evidence": SEEN}),  # half of it was estimated from that
        (HALF, UsageSource.REPORTED, {"usage": HALF}),
        (None, UsageSource.NONE, {"evidence": SEEN}),
    ],
)
def test_an_estimate_keeps_its_evidence(raw: dict[str, Any] | None, source: UsageSource, told: dict[str, Any]) -> None:
    metered = Metered(Usage(**raw) if raw else None, raw, Evidence(**SEEN), None, None, False, None, 3, (), {})
    assert _details(metered, Reading(Usage(), source), frozenset()) == told


class Later:
    """A counter that tells when it is let."""

    def __init__(self) -> None:
        self.told: Callable[[int | None], None] | None = None

    def add(self, text: str) -> None:
        """It has all."""

    def total(self) -> int | None:
        raise AssertionError("nobody waits for what was reported")

    def then(self, told: Callable[[int | None], None]) -> None:
        self.told = told


@pytest.mark.parametrize(
    ("counter", "counted", "at_once", "later"),
    [
        (None, None, 0.041, []),  # of the counters
        (Later(), 198, None, [-0.008]),  # of what was counted, once it is
        (Later(), None, None, [0.041]),  # it could not be
    ],
)
def test_what_a_tokenizer_counted_is_learned_later(
    counter: Later | None, counted: int | None, at_once: float | None, later: list[float]
) -> None:
    errors: list[float] = []
    closing = OpenExchange.__new__(OpenExchange)
    estimator = Estimator()
    meters = SimpleNamespace(estimated=lambda opened, error: errors.append(error))
    closing._ports = SimpleNamespace(estimator=estimator, meters=meters)  # type: ignore[assignment]
    closing._facts = SimpleNamespace(prompt=None)  # type: ignore[assignment]
    closing.opened, closing.model_key = SimpleNamespace(streamed=True), "p/m"  # type: ignore[assignment]
    seen = Evidence(text_events=200, chars_latin=800)
    usage = Usage(9, None, 193 if counted is None else 200)
    metered = Metered(usage, None, seen, "stop", None, True, None, 3, (), {}, counter=counter)
    assert closing._learn(metered) == (None if at_once is None else pytest.approx(at_once, abs=0.001))
    if counter is not None:
        assert errors == []
        assert counter.told is not None
        counter.told(counted)
    assert errors == pytest.approx(later, abs=0.001)
    assert bool(estimator.export()["tokenized"]) is bool(counted)
