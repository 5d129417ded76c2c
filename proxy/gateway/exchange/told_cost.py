"""Adds the cost of an answer to the usage that the client gets.

Invariants: the cost is the ledger's, or it is not added. Only usage objects that the client gets are changed.
"""

from __future__ import annotations

from enum import StrEnum, auto

from proxy.gateway.exchange.open_exchange import OpenExchange
from proxy.metering.answer_cost.edit import Cost, with_cost
from proxy.metering.answer_cost.editors import ANSWER_PATH, EventCostEditor, JsonCostEditor
from proxy.metering.dialect import AnswerEditor, Dialect
from proxy.metering.metered import BodyMeter
from proxy.metering.wire.framing import Framing


class TellsCost(StrEnum):
    """Whether the client gets the cost of its answer."""

    NO = auto()
    WITH_USAGE = auto()
    """the cost is in the usage, if the client gets a usage"""
    ASKED = auto()
    """the client requested the cost: it also gets the usage of a stream"""


class ToldCost:
    """The cost of one answer so far."""

    def __init__(self, open_exchange: OpenExchange, dialect: Dialect, *, n: int, asked: bool) -> None:
        """`n`: the number of choices. `asked`: the client also gets the usage of a stream."""
        self._open_exchange = open_exchange
        self._dialect = dialect
        self._n = n
        self._asked = asked
        self._meter: BodyMeter | None = None
        self.lengthens = False
        """the answer is held until its end, and gets longer than its Content-Length"""

    def editor(self, meter: BodyMeter, framing: Framing | None, stripper: AnswerEditor | None) -> AnswerEditor:
        """The editor of an answer that is relayed piece by piece. `stripper`: removes the usage from a stream."""
        self._meter = meter
        if framing is None:
            self.lengthens = True
            return JsonCostEditor(self._cost)
        if stripper is not None and not self._asked:
            return stripper
        return EventCostEditor(self._dialect.cost_path, self._cost)

    def in_body(self, meter: BodyMeter, body: bytes) -> bytes:
        """The collected body with the cost."""
        self._meter = meter
        return with_cost(body, ANSWER_PATH, self._cost)

    def _cost(self) -> Cost | None:
        assert self._meter is not None
        metered = self._meter.final_so_far(self._n)
        return None if metered is None else self._open_exchange.cost_to_tell(metered)
