"""The latest refusals of all processes on one port."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from proxy.http.refused_requests import RefusalLog, RefusedRequest
from proxy.runtime.proxy.peer_processes import PeerProcesses

REFUSALS = "refusals"
"""the request between peers"""

_DECODER = msgspec.json.Decoder(list[RefusedRequest])


@dataclass(frozen=True, slots=True)
class RecentRefusals:
    """Reads the refusals of this process and its peers."""

    local: RefusalLog
    peers: PeerProcesses | None

    def answer(self) -> bytes:
        """The answer to a peer."""
        return msgspec.json.encode(self.local.latest())

    async def latest(self) -> Sequence[RefusedRequest]:
        """The newest first. A peer that does not answer is left out."""
        answers = [] if self.peers is None else await self.peers.ask(REFUSALS)
        every = [*self.local.latest(), *(one for answer in answers for one in _DECODER.decode(answer))]
        return sorted(every, key=lambda one: one.id, reverse=True)
