"""An exchange gets its record and lets go of all it has, whatever raises where."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.billing.record import Opened, Outcome, UsageRecord
from proxy.gateway.exchange.open_exchange import OpenExchange
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.metered import Metered
from proxy.metering.usage import Evidence, Usage, UsageSource
from tests.gateway.exchange.alone import Ended, exchange_alone


class Bug(Exception):
    """What must not spread."""


class Everything(Ended):
    """All that is around an exchange. `broken`: the names of what raises."""

    def __init__(self, broken: frozenset[str]) -> None:
        super().__init__()
        self.broken = broken
        self.done: list[str] = []
        self.charged: list[int] = []

    def _step(self, name: str) -> None:
        if name in self.broken:
            raise Bug(" ".join(("a", "prompt's", "text")))
        self.done.append(name)

    def finish(self, record: UsageRecord, slot: object) -> None:
        super().finish(record, slot)
        self._step("finish")

    def close(self, nusd: int, tokens: int, *_: object) -> None:
        self.charged.append(nusd)
        self._step("close")

    def ended(self, record: UsageRecord, *details: object, **more: object) -> None:
        self._step("ended")


class Estimating(Estimator):
    """An estimator that raises."""

    def prompt_error(self, model_key: str) -> float:
        raise Bug

    def completion(self, *_args: Any, **_named: Any) -> Any:
        raise Bug

    def learn(self, *_args: Any, **_named: Any) -> float | None:
        raise Bug


def exchange(everything: Everything, estimator: Estimator) -> OpenExchange:
    opened = Opened("exc-7", "k", "k", "p", "m", "m", "chat.completions", True, 0.0, None, None, 3, None, 0)
    return exchange_alone(opened, everything, estimator, traces=everything)


def metered(*, reported: bool) -> Metered:
    seen = Evidence(text_events=3, chars_latin=12)
    return Metered(Usage(9, None, 7) if reported else None, None, seen, "stop", None, True, None, 3, (), {})


@pytest.mark.parametrize("broken", ["finish", "close", "ended"])
def test_what_one_step_raises_keeps_no_other_from_its_end(broken: str, caplog: pytest.LogCaptureFixture) -> None:
    everything = Everything(frozenset([broken]))
    exchange(everything, Estimator()).close(Outcome.SERVED, now=1.0, metered=metered(reported=True), size=9)
    assert [record.outcome for record in everything.records] == [Outcome.SERVED]
    assert everything.charged == [0]
    expected = ["finish", "close"] + ["ended"] * 2 if broken != "ended" else ["finish", "close"]
    assert everything.done == [name for name in expected if name != broken]
    assert "exchange exc-7 could not be closed as it should: Bug" in caplog.text
    assert "a prompt's text" not in caplog.text


def test_a_reading_that_cannot_be_made_still_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    everything = Everything(frozenset())
    exchange(everything, Estimating()).close(Outcome.SERVED, now=1.0, metered=metered(reported=False), events=3, size=9)
    (record,) = everything.records
    assert (record.outcome, record.reading.source) == (Outcome.CRASHED, UsageSource.NONE)
    assert (record.events, record.bytes, record.details["failed"]) == (3, 9, "proxy_bug")
    assert everything.done == ["finish", "close", "ended", "ended"]
    assert "exchange exc-7 could not be closed as it should: Bug" in caplog.text


def test_what_cannot_be_learned_is_billed_all_the_same() -> None:
    everything = Everything(frozenset())
    exchange(everything, Estimating()).close(Outcome.SERVED, now=1.0, metered=metered(reported=True), size=9)
    (record,) = everything.records
    assert (record.outcome, record.reading.usage.completion_tokens) == (Outcome.SERVED, 7)
    assert everything.done == ["finish", "close"]
