"""Telling a client what its answer costs, in the usage of the answer.

Invariants: the number is the ledger's, or there is none. Only usage objects change, those that the client gets.
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
    """Whether an answer tells what it costs."""

    NO = auto()
    WITH_USAGE = auto()
    """wherever the client gets a usage"""
    ASKED = auto()
    """likewise, and it gets the usage of a stream"""


class ToldCost:
    """The cost of one answer, as it is so far."""

    def __init__(self, open_exchange: OpenExchange, dialect: Dialect, *, n: int, asked: bool) -> None:
        """`n`: the number of choices. `asked`: the client gets the usage of a stream, too."""
        self._open_exchange = open_exchange
        self._dialect = dialect
        self._n = n
        self._asked = asked
        self._meter: BodyMeter | None = None
        self.lengthens = False
        """the answer is held to its end, and then longer than the provider said"""

    def editor(self, meter: BodyMeter, framing: Framing | None, stripper: AnswerEditor | None) -> AnswerEditor:
        """Of an answer that is passed on as it comes. `stripper`: takes the usage out of a stream."""
        self._meter = meter
        if framing is None:
            self.lengthens = True
            return JsonCostEditor(self._cost)
        if stripper is not None and not self._asked:
            return stripper
        return EventCostEditor(self._dialect.cost_path, self._cost)

    def in_body(self, meter: BodyMeter, body: bytes) -> bytes:
        """Of an answer that was collected."""
        self._meter = meter
        return with_cost(body, ANSWER_PATH, self._cost)

    def _cost(self) -> Cost | None:
        assert self._meter is not None
        metered = self._meter.final_so_far(self._n)
        return None if metered is None else self._open_exchange.cost_to_tell(metered)
