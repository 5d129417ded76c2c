"""An open exchange, and its request to a provider, without a server: what is around them is the test's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from multidict import CIMultiDict, CIMultiDictProxy

from proxy.billing.pricing.rules import NOBODY
from proxy.billing.record import Opened, UsageRecord
from proxy.billing.reservation import Reservation
from proxy.gateway.exchange.open_exchange import OpenExchange
from proxy.gateway.exchange.upstream_request import UpstreamRequest
from proxy.gateway.upstream.provider import Provider
from proxy.gateway.upstream.routing import Route
from proxy.metering.dialects.openai.chat import OPENAI_CHAT
from proxy.metering.estimator.estimate import model_key
from proxy.metering.held_text import TextCounter
from proxy.metering.request import RequestFacts
from proxy.metering.usage import PromptEvidence
from proxy.settings import ProviderSettings

PROVIDER = Provider.of(ProviderSettings(name="p", base_url="http://provider.test/v1"), write_stall_s=60)


class Ended:
    """Outbox, reservation and metrics in one: keeps the records."""

    spends = True
    reserved = Reservation("", (), 0, 0)

    def __init__(self) -> None:
        self.records: list[UsageRecord] = []

    def finish(self, record: UsageRecord, slot: object) -> None:
        self.records.append(record)

    def close(self, nusd: int, tokens: int, *_: object) -> None: ...

    def ended(self, record: UsageRecord, *details: object, **more: object) -> None: ...


def exchange_alone(
    opened: Opened, around: Any, estimator: Any, *, prompt: PromptEvidence | None = None, traces: Any = None,
    counter: TextCounter | None = None, prices: Any = lambda *_: (None, None),
) -> OpenExchange:  # fmt: skip
    """`around`: its outbox, reservation and metrics."""
    ports: Any = SimpleNamespace(outbox=around, meters=around, estimator=estimator, traces=traces)
    facts = RequestFacts(
        model="m", streamed=True, completion_tokens_max=opened.completion_tokens_max, prompt=prompt or PromptEvidence()
    )
    route, slot = Route(PROVIDER, "m", prices, counter=counter), None
    made = OpenExchange(
        opened, slot, ports, facts=facts, started_at=0.0, reservation=around, durable=None, route=route,  # type: ignore[arg-type]
        payer=NOBODY,
    )  # fmt: skip
    made.accepted = True
    made.model_key = model_key(opened.provider, opened.upstream_model)
    return made


def request_alone(upstream: Any, route: Route, **more: Any) -> UpstreamRequest:
    """A chat request, with `more` in its document, to the providers of a route: `upstream` is asked."""
    document = {"model": "m", "messages": [{"role": "user", "content": "x"}], **more}
    opened = SimpleNamespace(prompt_tokens_estimate=0, completion_tokens_max=None)
    admitted: Any = SimpleNamespace(
        request=SimpleNamespace(headers=CIMultiDictProxy(CIMultiDict()), raw_path="/v1/chat/completions"),
        dialect=OPENAI_CHAT, facts=OPENAI_CHAT.facts(document, None), document=document, route=route,
        open_exchange=SimpleNamespace(opened=opened), body_bytes=0, own_credential=None,
    )  # fmt: skip
    ports: Any = SimpleNamespace(upstream=upstream, unix_time=lambda: 1_793_000_000.0)
    return UpstreamRequest(admitted, ports)
