"""An exchange gets its record and lets go of all it has, whatever raises where."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from proxy.billing.pricing.rules import NOBODY
from proxy.billing.record import Opened, Outcome, UsageRecord
from proxy.gateway.exchange.open_exchange import OpenExchange
from proxy.gateway.upstream.provider import Provider
from proxy.gateway.upstream.routing import Route
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.metered import Metered
from proxy.metering.usage import Evidence, PromptEvidence, Usage, UsageSource
from proxy.settings import ProviderSettings


class Bug(Exception):
    """What must not spread."""


class Everything:
    """Outbox, reservation, metrics and traces in one. `broken`: the names of what raises."""

    def __init__(self, broken: frozenset[str]) -> None:
        self.broken = broken
        self.done: list[str] = []
        self.records: list[UsageRecord] = []
        self.charged: list[int] = []

    def _step(self, name: str) -> None:
        if name in self.broken:
            raise Bug(" ".join(("a", "prompt's", "text")))
        self.done.append(name)

    def finish(self, record: UsageRecord, slot: object) -> None:
        self.records.append(record)
        self._step("finish")

    def close(self, nusd: int, tokens: int) -> None:
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
    ports = SimpleNamespace(outbox=everything, meters=everything, traces=everything, estimator=estimator)
    opened = Opened(
        exchange_id="exc-7", key_id="k", key_alias="k", provider="p", model="m", upstream_model="m",
        endpoint="chat.completions", streamed=True, started_at=0.0, price=None, cost=None, prompt_tokens_estimate=3,
        completion_tokens_max=None, slot=0,
    )  # fmt: skip
    facts = SimpleNamespace(
        prompt=PromptEvidence(), asked=None, context_tokens=None, echoes=False, doubts=(), completion_tokens_max=None
    )
    slot: Any = None
    settings = ProviderSettings(name="p", base_url="http://provider.test/v1")
    route = Route(Provider.of(settings, write_stall_s=60), "m", lambda *_: (None, None))
    return OpenExchange(
        opened, slot, ports, facts=facts, started_at=0.0, reservation=everything,  # type: ignore[arg-type]
        durable=None, route=route, payer=NOBODY,
    )  # fmt: skip


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
