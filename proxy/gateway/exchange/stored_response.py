"""The response of an exchange, as its provider stores it: its owner, and whether it is generated in the background.

Invariant: the owner is stored before a client can get the id.
"""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from proxy.billing.details import EntryDetails
from proxy.billing.record import Opened, Outcome
from proxy.gateway.exchange.admitted import AdmittedRequest
from proxy.gateway.exchange.hand_over import Background, HandOver, background_owner, run_for
from proxy.gateway.exchange.relay import Relay
from proxy.gateway.exchange.upstream_request import target
from proxy.gateway.ports import Ports
from proxy.gateway.upstream.credentials import Use
from proxy.gateway.upstream.provider import Provider
from proxy.keys.response_owners import ResponseOwner
from proxy.metering.dialect import Dialect
from proxy.metering.metered import Metered


def owner_of(
    opened: Opened, project_id: str, dialect: Dialect, use: Use | None, *, runs: bool = False
) -> ResponseOwner:
    """The owner of the response of this exchange. `runs`: see `ResponseOwner`."""
    return ResponseOwner(
        key_id=opened.key_id,
        project_id=project_id,
        provider=opened.provider,
        dialect=dialect.name,
        credential=None if use is None else use.credential.name,
        exchange_id=opened.exchange_id,
        runs=runs,
    )


class StoredResponse:
    """Call `read` until the id is known, and `hand_over` at the end of a background response."""

    def __init__(self, admitted: AdmittedRequest, ports: Ports, background: Background) -> None:
        """`background`: takes over the exchange if its provider continues in the background."""
        dialect, facts = admitted.dialect, admitted.facts
        self._open_exchange = admitted.open_exchange
        self._dialect = dialect
        self._ports = ports
        self._background = background
        self._project_id = admitted.key.project_id
        self._raw_path = admitted.request.raw_path
        is_here = dialect.stores and admitted.own_credential is None  # else only the client can ask for it
        self.is_awaited = is_here and (facts.is_stored or facts.in_background)
        """the id is not known yet"""
        self.in_background = is_here and facts.in_background
        """the response runs in the background (requested, or reported by the provider)"""

    def read(self, response_id: str | None, provider: Provider, use: Use | None, *, in_background: bool | None) -> None:
        """Take the id and the background flag, as far as the provider has reported them."""
        if response_id is None:
            return
        self.is_awaited = False
        if in_background is not None:
            self.in_background = in_background
        owner = owner_of(self._open_exchange.opened, self._project_id, self._dialect, use, runs=self.in_background)
        if self.in_background:
            query = target(self._dialect, "", self._raw_path).partition("?")[2]
            until = self._ports.unix_time() + provider.settings.timeouts.background_s
            self._open_exchange.runs_in_background(run_for(owner, response_id, until, query))
        self._ports.owners.made(response_id, owner)

    def still_generating(self, metered: Metered | None) -> bool:
        """True if the provider still generates the response, so that it can be polled. `metered`: the meter's result,
        if the body was read."""
        ended = metered is not None and metered.answer_ended
        return self._open_exchange.opened.background is not UNSET and not ended

    def hand_over(
        self,
        outcome: Outcome,
        metered: Metered,
        relay: Relay,
        provider: Provider,
        *,
        details: EntryDetails,
        headers: str,
    ) -> bool:
        """Hand the exchange over to polling. False: the response has ended, or has no id. `headers`: the client's
        headers that were sent to the provider."""
        open_exchange = self._open_exchange
        if not self.still_generating(metered):
            if open_exchange.opened.background is not UNSET:
                self._ports.owners.made(
                    open_exchange.opened.background.response_id, background_owner(open_exchange.opened, runs=False)
                )
            return False
        open_exchange.hand_over()
        handed = HandOver(
            open_exchange=open_exchange,
            provider=provider,
            metered=replace(metered, held=None),  # polling can take hours
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
