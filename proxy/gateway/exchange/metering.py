"""Uses the meter of an exchange while its body is read, for its cost so far and for the id of a stored answer.

Invariant: until the first word of a model that hides reasoning, the time that goes by is recorded as progress.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum, auto

from msgspec import UNSET

from proxy.gateway.exchange.open_exchange import OpenExchange
from proxy.gateway.exchange.relay import Relay
from proxy.gateway.exchange.spending import Spending
from proxy.gateway.exchange.stored_response import StoredResponse
from proxy.gateway.exchange.upstream_request import UpstreamRequest
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.metered import BodyMeter, Metered
from proxy.metering.tally import Tally

# A crash may forget so much of a silence.
_SILENCE_S = 2.0


class CutReason(StrEnum):
    """Why an answer is cut before its end."""

    BUDGET = auto()
    """it costs more than the budget has left"""
    OPERATOR = auto()
    """an operator has stopped it"""


class Metering:
    """Call `folded` after each fold of the meter, `stop` when the body has ended."""

    __slots__ = ("_asking", "_exchange", "_silence", "cut_reason", "spending", "stored")

    def __init__(
        self, open_exchange: OpenExchange, estimator: Estimator, asking: UpstreamRequest, stored: StoredResponse
    ) -> None:
        self._exchange = open_exchange
        self._asking = asking
        self.stored = stored
        self.spending = Spending(open_exchange, estimator)
        self.cut_reason: CutReason | None = None
        """set when the answer is to be cut; None: it is not"""
        self._silence: asyncio.TimerHandle | None = None

    def folded(self, meter: BodyMeter) -> None:
        """The meter has read everything so far."""
        if self.stored.is_awaited:
            self.read_name(meter.tally)
        self.spending.folded(meter)

    def read_name(self, said: Tally | Metered) -> None:
        """Take the id of the answer, which is not known yet, if the provider has sent it."""
        provider, use = self._asking.route.provider, self._asking.use
        self.stored.read(said.response_id, provider, use, in_background=said.in_background)

    def has_read_enough(self, meter: BodyMeter) -> bool:
        """True if a drain has read as many tokens as its provider's settings allow."""
        return self.spending.generated(meter) >= self._asking.route.provider.settings.drain.tokens

    def listen_to_silence(self, relay: Relay) -> None:
        """Record that time goes by, until the first word."""
        if relay.first_token_at is None and self._exchange.opened.silence is not UNSET:
            self._exchange.slot.wait()
            self._silence = asyncio.get_running_loop().call_later(_SILENCE_S, self.listen_to_silence, relay)

    def stop(self) -> None:
        """The body has ended."""
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None
