"""The dialect of Realtime: `GET /v1/realtime?model=…` as a WebSocket.

Each response is an exchange, requested or begun by the provider, and so is each transcription of the client's audio,
which another model makes. A session itself costs nothing.
"""

from __future__ import annotations

from proxy.metering.dialect import Dialect
from proxy.metering.dialects.openai_realtime.session import RealtimeWire
from proxy.metering.dialects.openai_realtime.tally import RealtimeTally
from proxy.metering.request import RequestFacts
from proxy.metering.socket import Socket


def _no_request(document: object, named: str | None = None) -> RequestFacts:
    raise AssertionError("it has no route for requests")


OPENAI_REALTIME = Dialect(
    name="openai.realtime",
    paths=("/v1/realtime",),
    upstream_path="/realtime",
    operation="realtime",
    facts=_no_request,
    tally=RealtimeTally,
    query=("intent",),
    socket=Socket(RealtimeWire, model_query="model"),
    is_posted=False,
)
