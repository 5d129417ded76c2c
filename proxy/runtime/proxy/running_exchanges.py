"""Running exchanges of this process, of its peers, and of other nodes by the lease registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from proxy.console.api.live import RunningSnapshot
from proxy.console.remote_exchanges import RemoteExchanges
from proxy.gateway.background.exchanges import BackgroundExchanges
from proxy.gateway.exchange.handler import ProxyHandler
from proxy.gateway.exchange.running import ExchangeSnapshot
from proxy.journal.frames import decode_opened
from proxy.metering.estimator.estimate import Estimator
from proxy.runtime.proxy.peer_processes import PeerProcesses

if TYPE_CHECKING:
    from proxy.runtime.machine.queue import Queue

LIVE, KEY_OF = "live", "key-of"
"""requests between peers: the running exchanges; the key of the exchange whose id follows"""


class NodeExchanges(msgspec.Struct, frozen=True):
    """The running exchanges of one process."""

    node: str
    running: list[ExchangeSnapshot]


_NODE_EXCHANGES = msgspec.json.Decoder(NodeExchanges)


class RunningExchanges:
    """Answers for all processes on one port, and for all nodes on the queue."""

    def __init__(
        self,
        handler: ProxyHandler,
        background: BackgroundExchanges,
        peers: PeerProcesses | None,
        queue: Queue | None,
        *,
        node: str,
        estimator: Estimator,
    ) -> None:
        """`node`: this process's name in the lease registry."""
        self._handler = handler
        self._background = background
        self._peers = peers
        self._queue = queue
        self._node = node
        self._remote = None if queue is None else RemoteExchanges(queue.leases, estimator)

    async def answer_to(self, request: str) -> bytes:
        """The answer to a peer; empty for an unknown request."""
        word, _, exchange_id = request.partition(" ")
        if word == LIVE:
            return msgspec.json.encode(self._local())
        return (self._handler.owners.key_of(exchange_id) or "").encode() if word == KEY_OF else b""

    async def running(self) -> RunningSnapshot:
        """Read the processes on this port and the lease registry."""
        answers = [] if self._peers is None else await self._peers.ask(LIVE)
        nodes = [self._local(), *map(_NODE_EXCHANGES.decode, answers)]
        running = [exchange for node in nodes for exchange in node.running]
        if self._remote is None:
            return RunningSnapshot(running, len(nodes))
        remote = await self._remote.poll({node.node for node in nodes})
        return RunningSnapshot([*running, *remote.running], len(nodes), remote.nodes, remote.coverage)

    async def key_of(self, exchange_id: str) -> str | None:
        """The key of an exchange that runs on any node, or has just ended in this process; None: unknown. Raises
        OSError."""
        key_id = self._handler.owners.key_of(exchange_id)
        if key_id is None and self._peers is not None and exchange_id.isprintable():
            answers = await self._peers.ask(f"{KEY_OF} {exchange_id}")
            key_id = answers[0].decode() if answers else None
        if key_id is None and self._queue is not None:
            opened = await self._queue.leases.opened(exchange_id)
            key_id = None if opened is None else decode_opened(opened).key_id
        return key_id

    def _local(self) -> NodeExchanges:
        running = [exchange.running() for exchange in self._handler.live]
        return NodeExchanges(self._node, running + [exchange.running() for exchange in self._background.live])
