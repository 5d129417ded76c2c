"""Running exchanges of this process, of its peers, and of other nodes by the lease registry."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from proxy.console.api.live import RunningSnapshot, StopResult
from proxy.console.remote_exchanges import RemoteExchanges
from proxy.gateway.background.exchanges import BackgroundExchanges
from proxy.gateway.exchange.handler import ProxyHandler
from proxy.gateway.exchange.running import ExchangeSnapshot
from proxy.runtime.proxy.peer_processes import PeerProcesses

LIVE, KEY_OF, STOP = "live", "key-of", "stop"
"""requests between peers: the running exchanges; the key of the exchange whose id follows; stop that exchange"""


class NodeExchanges(msgspec.Struct, frozen=True):
    """The running exchanges of one process."""

    node: str
    running: list[ExchangeSnapshot]


_NODE_EXCHANGES = msgspec.json.Decoder(NodeExchanges)


@dataclass(frozen=True, slots=True)
class RunningExchanges:
    """Answers for all processes on one port, and for all nodes on the queue."""

    handler: ProxyHandler
    background: BackgroundExchanges
    peers: PeerProcesses | None
    remote: RemoteExchanges | None
    """None: there is no queue"""
    node: str
    """the name of this process in the lease registry"""

    async def answer_to(self, request: str) -> bytes:
        """The answer to a peer; empty for an unknown request."""
        word, _, exchange_id = request.partition(" ")
        if word == LIVE:
            return msgspec.json.encode(self._local())
        if word == STOP:
            return self.stop_local(exchange_id).encode()
        return (self.handler.owners.key_of(exchange_id) or "").encode() if word == KEY_OF else b""

    async def running(self) -> RunningSnapshot:
        """Read the processes on this port and the lease registry."""
        answers = [] if self.peers is None else await self.peers.ask(LIVE)
        nodes = [self._local(), *map(_NODE_EXCHANGES.decode, answers)]
        running = [exchange for node in nodes for exchange in node.running]
        if self.remote is None:
            return RunningSnapshot(running, len(nodes))
        remote = await self.remote.poll({node.node for node in nodes})
        return RunningSnapshot([*running, *remote.running], len(nodes), remote.nodes, remote.coverage)

    async def key_of(self, exchange_id: str) -> str | None:
        """The key of an exchange that runs on any node, or has just ended in this process; None: unknown. Raises
        OSError."""
        key_id = self.handler.owners.key_of(exchange_id)
        if key_id is None and self.peers is not None and exchange_id.isprintable():
            answers = await self.peers.ask(f"{KEY_OF} {exchange_id}")
            key_id = answers[0].decode() if answers else None
        if key_id is None and self.remote is not None:
            key_id = await self.remote.key_of(exchange_id)
        return key_id

    async def stop(self, exchange_id: str) -> StopResult:
        """Stop a stream that runs in this process, in a peer or on another machine. Raises OSError."""
        result = self.stop_local(exchange_id)
        if result is StopResult.NOT_RUNNING and self.peers is not None and exchange_id.isprintable():
            answers = [StopResult(answer.decode()) for answer in await self.peers.ask(f"{STOP} {exchange_id}")]
            result = next((one for one in answers if one is not StopResult.NOT_RUNNING), result)
        if result is StopResult.NOT_RUNNING and self.remote is not None:
            result = await self.remote.stop(exchange_id)
        return result

    def stop_local(self, exchange_id: str) -> StopResult:
        """Stop a stream of this process."""
        for exchange in self.handler.live:
            if exchange.exchange_id == exchange_id:
                return StopResult.STOPPED if exchange.stop_stream() else StopResult.NOT_STOPPABLE
        is_here = any(one.exchange_id == exchange_id for one in self.background.live)
        return StopResult.NOT_STOPPABLE if is_here else StopResult.NOT_RUNNING

    def _local(self) -> NodeExchanges:
        running = [exchange.running() for exchange in self.handler.live]
        return NodeExchanges(self.node, running + [exchange.running() for exchange in self.background.live])
