"""What the console shows of a running deployment: providers, models and sinks, as configured now.

Invariant: the answers follow reloads of the configuration.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

import msgspec
from sqlalchemy import Engine

from proxy.billing.keys import ApiKey
from proxy.billing.pricing.prices import price_text
from proxy.billing.pricing.rules import NOBODY, Payer
from proxy.billing.record import Price
from proxy.console.api.delivery import RejectedEntry, SinkShown
from proxy.console.api.models import ConfiguredModel, PriceChange, PriceText, TargetShown, change_at, margins
from proxy.console.api.own_key import OwnPrice
from proxy.console.api.providers import ConfiguredProvider, CredentialState, ProviderState
from proxy.foundation.times import iso_utc
from proxy.gateway.upstream.provider import Provider
from proxy.runtime.machine.price_lookup import PriceLookup
from proxy.runtime.proxy.configuration import Configuration
from proxy.runtime.proxy.own_prices import own_prices
from proxy.runtime.proxy.peer_processes import PeerProcesses
from proxy.settings import ModelSettings, TargetSettings, route
from proxy.sinks.progress import OPEN, dead_letters, sink_status

PROVIDERS = "providers"
"""the request between peers"""

REJECTED_SHOWN = 100
_DECODER = msgspec.json.Decoder(list[ProviderState])


@dataclass(frozen=True, slots=True)
class DeploymentState:
    """Reads the configuration that applies, and the providers' health in all processes on this port."""

    configuration: Configuration
    peers: PeerProcesses | None

    # -- providers

    def providers(self) -> list[ConfiguredProvider]:
        """The configured providers."""
        settings = self.configuration.settings
        return [
            ConfiguredProvider(
                name=name,
                base_url=_origin(one.base_url),
                models=[
                    model.name
                    for model in settings.models.values()
                    if any(target.provider == name for target in model.providers)
                ],
            )
            for name, one in settings.providers.items()
        ]

    def answer(self) -> bytes:
        """The answer to a peer."""
        return msgspec.json.encode(self._own_states())

    async def provider_states(self) -> Sequence[ProviderState]:
        """The states in this process and its peers. Peers that do not answer are left out."""
        answers = [] if self.peers is None else await self.peers.ask(PROVIDERS)
        return [*self._own_states(), *(one for answer in answers for one in _DECODER.decode(answer))]

    def _own_states(self) -> list[ProviderState]:
        number = 0 if self.peers is None else self.peers.number
        return [_state(name, number, one) for name, one in self.configuration.providers.items()]

    # -- models

    def models(self, used: Iterable[str]) -> list[ConfiguredModel]:
        """The configured models and patterns, and the names of `used` that a pattern serves."""
        settings = self.configuration.settings
        lookup = PriceLookup(settings, self.configuration.book)
        found = [self._model(lookup, name, model, "", None) for name, model in settings.models.items()]
        for name in used:
            if name not in settings.models and (matched := route(settings.models, name)) is not None:
                model, passed = matched
                found.append(self._model(lookup, name, model, passed, model.name))
        return found

    def _model(
        self, lookup: PriceLookup, name: str, model: ModelSettings, passed: str, pattern: str | None
    ) -> ConfiguredModel:
        now, is_pattern = time.time(), model.is_pattern and not passed
        targets = []
        price: PriceText | None = None
        for target in model.providers:
            lists = None if is_pattern else lookup.admitted(model, passed, target, now, NOBODY, name)
            price = _text(None if lists is None else lists.price)
            cost = _text(None if lists is None else lists.cost)
            targets.append(
                TargetShown(
                    provider=target.provider,
                    upstream_model=target.upstream_model or passed,
                    cost=cost,
                    cost_source=_source(target.cost),
                    margins=margins(price, cost),
                )
            )
        return ConfiguredModel(
            model=name,
            is_pattern=is_pattern,
            pattern=pattern,
            price=price,
            price_source=_source(model.price),
            has_rules=bool(self.configuration.settings.price_rules),
            targets=targets,
            changes=sorted(_changes(model, now), key=lambda one: one.at),
        )

    def own_prices(self, key: ApiKey, payer: Payer, names: Iterable[str]) -> list[OwnPrice]:
        """The prices of these models for a key."""
        configuration = self.configuration
        return own_prices(configuration.settings, configuration.book, key, payer, names, time.time())

    # -- sinks

    def sinks(self, engine: Engine) -> list[SinkShown]:
        """The configured sinks. Raises LedgerUnavailable."""
        return [_sink(engine, name, one.kind) for name, one in self.configuration.settings.sinks.items()]


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _state(name: str, number: int, provider: Provider) -> ProviderState:
    now, pool = time.monotonic(), provider.pool
    return ProviderState(
        provider=name,
        process=number,
        breaker=provider.health.state(now),
        failures=provider.health.failures,
        away_s=round(provider.health.away_s(now), 1),
        credentials=[
            CredentialState(name=one.name, rests_s=round(one.rests_s(now), 1), is_rejected=one.is_rejected)
            for one in (() if pool is None else pool.credentials)
        ],
    )


def _text(price: Price | None) -> PriceText | None:
    return None if price is None or not (price.tiers or price.stated) else price_text(price, 0)


def _source(lists: object | None) -> Literal["configuration", "price_book"]:
    return "price_book" if lists is None else "configuration"


def _changes(model: ModelSettings, now: float) -> Iterator[PriceChange]:
    """The later price lists of a model and of its providers."""
    for at, price in () if model.price is None else model.price.steps:
        if at > now:
            yield change_at(at, "price", "", price_text(price, 0))
    for target in model.providers:
        yield from _cost_changes(target, now)


def _cost_changes(target: TargetSettings, now: float) -> Iterator[PriceChange]:
    for at, price in () if target.cost is None else target.cost.steps:
        if at > now:
            yield change_at(at, "cost", target.provider, price_text(price, 0))


def _sink(engine: Engine, name: str, kind: str) -> SinkShown:
    status = sink_status(engine, name)
    if status is None:
        return SinkShown(
            name=name, kind=kind, state="never_run", sent=0, pending=0, lag_s=0.0, last_sent_at=None,
            failing_since=None, failures=0, last_error=None, rejected_count=0, rejected=[],
        )  # fmt: skip
    sink = status.sink
    rejected = [one for one in dead_letters(engine, name) if one.state == OPEN] if status.dead_letters else []
    return SinkShown(
        name=name,
        kind=kind,
        state="failing" if sink.failures else "behind" if status.waiting else "up_to_date",
        sent=sink.sent,
        pending=status.waiting,
        lag_s=round(status.lag_s(time.time()), 3),
        last_sent_at=None if sink.last_sent_at is None else iso_utc(sink.last_sent_at),
        failing_since=None if sink.failing_since is None else iso_utc(sink.failing_since),
        failures=sink.failures,
        last_error=sink.last_error,
        rejected_count=status.dead_letters,
        rejected=[
            RejectedEntry(entry_id=one.entry_id, settled_at=iso_utc(one.settled_at), reason=one.why)
            for one in rejected[:REJECTED_SHOWN]
        ],
    )
