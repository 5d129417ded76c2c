"""Continues exchanges with background responses after a restart of their process.

Invariants: such an exchange stays open in the journal, with its slot, until the next process has settled it. If the
client received nothing, or the progress is lost, the exchange is recovered like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import NamedTuple

from msgspec import UNSET, structs

from proxy.billing.details import EntryDetails
from proxy.billing.pricing.rules import NOBODY, Payer
from proxy.billing.record import Opened, Outcome
from proxy.gateway.background.exchanges import BackgroundExchanges
from proxy.gateway.exchange.hand_over import HandOver, background_owner, run_of
from proxy.gateway.exchange.open_exchange import OpenExchange
from proxy.gateway.exchange.running import ExchangeOwners
from proxy.gateway.outbox import Outbox
from proxy.gateway.ports import Ports
from proxy.gateway.upstream.provider import Provider
from proxy.gateway.upstream.routing import Models, Route, only_at
from proxy.journal.progress import Progress, ProgressTable, Slot
from proxy.journal.recovery import metered_of, silent_s
from proxy.keys.keyring import Keyring
from proxy.metering.request import RequestFacts
from proxy.metering.usage import PromptEvidence
from proxy.runtime.proxy.admission import AdmissionService


class Suspended(NamedTuple):
    """An open exchange of an earlier process."""

    opened: Opened
    progress: Progress
    slot: Slot


class Recovered(NamedTuple):
    """The contents of a journal that the last process left."""

    resumable: list[Suspended]
    settled: list[str]
    """ids of background responses that were settled before their end: their owner must be deleted, so that no key can
    read them"""
    unwritten: list[Slot]
    """slots of settled exchanges whose records the disk has refused so far"""
    backlog_to: int
    """the last seq of its records, recovered ones included"""


def suspended(
    unfinished: Iterable[Opened], table: ProgressTable, providers: Collection[str]
) -> dict[int, tuple[Opened, Progress]]:
    """The exchanges that can be continued, by slot. `providers`: the configured ones."""
    found: dict[int, tuple[Opened, Progress]] = {}
    for opened in unfinished:
        progress = table.read(opened.slot) if opened.background is not UNSET else None
        known = progress is not None and progress.exchange_id == opened.exchange_id and progress.bytes > 0
        if progress is not None and known and opened.provider in providers:
            found[opened.slot] = opened, progress
    return found


@dataclass(frozen=True, slots=True)
class Resumption:
    """Continues suspended exchanges."""

    background: BackgroundExchanges
    running: ExchangeOwners
    ports: Ports
    keyring: Keyring
    models: Models
    providers: Mapping[str, Provider]
    admission: AdmissionService

    async def resume(self, recovered: Recovered, outbox: Outbox) -> None:
        """Start to poll for the answers. `outbox`: that of the exchanges' journal. Call it before their reservations
        are announced."""
        for response_id in recovered.settled:
            await self.ports.owners.forget(response_id)
        await self.keyring.remember({one.opened.key_id for one in recovered.resumable})
        for one in recovered.resumable:
            self._resume(one, outbox)

    def _resume(self, one: Suspended, outbox: Outbox) -> None:
        opened, progress = one.opened, one.progress
        route = self._route(opened)
        open_exchange = OpenExchange(
            opened, one.slot, replace(self.ports, outbox=outbox),
            facts=_facts(opened), started_at=monotonic() - (self.ports.unix_time() - opened.started_at),
            reservation=self.admission.reserve_resumed(opened), durable=None, route=route, payer=self._payer(opened),
        )  # fmt: skip
        open_exchange.accepted = True
        open_exchange.silent_s = silent_s(opened, progress)
        open_exchange.hand_over()
        self.running.began(opened.exchange_id, opened.key_id)
        self.ports.owners.made(run_of(opened).response_id, background_owner(opened, runs=True))
        handed = HandOver(
            open_exchange=open_exchange,
            provider=route.provider,
            metered=structs.replace(metered_of(progress), response_id=run_of(opened).response_id, answer_ended=False),
            outcome=Outcome.CRASHED,
            details=EntryDetails(resumed=True),
            events=progress.events,
            size=progress.bytes,
            read=progress.bytes,
        )
        self.background.take(handed)

    def _route(self, opened: Opened) -> Route:
        provider, route = self.providers[opened.provider], self.models.route(opened.model)
        way = None if route is None else only_at(route, opened.provider)
        if way is None or way.provider is not provider:
            return Route(provider, opened.upstream_model, lambda *_: (None, None))
        return replace(way, upstream_model=opened.upstream_model)  # the settings may name another one now

    def _payer(self, opened: Opened) -> Payer:
        key = self.keyring.known(opened.key_id)
        return NOBODY if key is None else self.keyring.payer(key)


def _facts(opened: Opened) -> RequestFacts:
    """The facts of the request that the journal has."""
    return RequestFacts(
        model=opened.model,
        streamed=opened.streamed,
        usage_asked=True,
        completion_tokens_max=opened.completion_tokens_max,
        n=1,
        prompt=PromptEvidence(),
        is_stored=True,
        in_background=True,
    )
