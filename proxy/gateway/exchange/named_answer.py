"""The answer of an exchange by its id at the provider: who made it, and whether it goes on without a reader.

Invariant: who made an answer is remembered before anybody can ask for it.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from proxy.billing.record import Opened, Outcome
from proxy.billing.response_owner import ResponseOwner
from proxy.gateway.exchange.hand_over import Background, HandOver, owner_of, run_for
from proxy.gateway.exchange.open_exchange import OpenExchange
from proxy.gateway.exchange.relay import Relay
from proxy.gateway.exchange.upstream_request import target
from proxy.gateway.ports import Ports
from proxy.gateway.upstream.credentials import Use
from proxy.gateway.upstream.provider import Provider
from proxy.metering.dialect import Dialect
from proxy.metering.metered import Metered
from proxy.metering.request import RequestFacts


def maker_of(
    opened: Opened, project_id: str, dialect: Dialect, use: Use | None, *, runs: bool = False
) -> ResponseOwner:
    """Who made the answer of this exchange. `runs`: see `ResponseOwner`."""
    return ResponseOwner(
        key_id=opened.key_id,
        project_id=project_id,
        provider=opened.provider,
        dialect=dialect.name,
        credential=None if use is None else use.credential.name,
        exchange_id=opened.exchange_id,
        runs=runs,
    )


class NamedAnswer:
    """`read` what the meter knows of it, as it comes."""

    def __init__(
        self,
        open_exchange: OpenExchange,
        dialect: Dialect,
        facts: RequestFacts,
        ports: Ports,
        background: Background,
        *,
        project_id: str,
        raw_path: str,
    ) -> None:
        """`background`: takes the exchange over if its provider goes on."""
        self._open_exchange = open_exchange
        self._dialect = dialect
        self._ports = ports
        self._background = background
        self._project_id = project_id
        self._raw_path = raw_path
        self.is_awaited = dialect.stores and (facts.is_stored or facts.in_background)
        """its id is not known yet"""
        self.in_background = dialect.stores and facts.in_background
        """the provider makes it whoever reads it, as asked, or as it says"""

    def read(self, response_id: str | None, provider: Provider, use: Use | None, *, in_background: bool | None) -> None:
        """The id, if the provider has named it, and what it says of the background."""
        if response_id is None:
            return
        self.is_awaited = False
        if in_background is not None:
            self.in_background = in_background
        owner = maker_of(self._open_exchange.opened, self._project_id, self._dialect, use, runs=self.in_background)
        if self.in_background:
            query = target(self._dialect, "", self._raw_path).partition("?")[2]
            until = self._ports.unix_time() + provider.settings.timeouts.background_s
            self._open_exchange.runs_in_background(run_for(owner, response_id, until, query))
        self._ports.owners.made(response_id, owner)

    def goes_on(self, metered: Metered | None) -> bool:
        """The provider makes it without us: it can be asked for. `metered`: the answer, if it was read."""
        ended = metered is not None and metered.answer_ended
        return self._open_exchange.opened.background is not UNSET and not ended

    def hand_over(
        self,
        outcome: Outcome,
        metered: Metered,
        relay: Relay,
        provider: Provider,
        *,
        details: dict[str, Any],
        headers: str,
    ) -> bool:
        """To whoever asks the provider for the answer. False: it has ended, or has no name. `headers`: of the client,
        which passed to the provider."""
        open_exchange = self._open_exchange
        if not self.goes_on(metered):
            if open_exchange.opened.background is not UNSET:
                self._ports.owners.made(
                    open_exchange.opened.background.response_id, owner_of(open_exchange.opened, runs=False)
                )
            return False
        open_exchange.hand_over()
        handed = HandOver(
            open_exchange=open_exchange,
            provider=provider,
            metered=replace(metered, held=None),  # for hours, perhaps
            outcome=outcome,
            details=details,
            stops=outcome is Outcome.BUDGET_CUT,
            headers=headers,
            events=relay.events,
            size=relay.bytes,
            read=relay.meter.bytes_seen,
            first_token_at=relay.first_token_at,
        )
        self._background(handed)
        return True
