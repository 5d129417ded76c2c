"""A lease registry without a server."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from proxy.delivery.leases import LeaseCount, LeaseParts


class LocalLeases:
    """A `LeaseRegistry` in memory, for proxies and sweepers on one event loop."""

    def __init__(self) -> None:
        self._beats: dict[str, str] = {}
        self._leases: dict[str, dict[str, LeaseParts]] = {}

    async def renew(
        self, node: str, beat: str, changed: Mapping[str, LeaseParts], ended: Collection[str]
    ) -> LeaseCount:
        before = self._beats.get(node)
        self._beats[node] = beat
        leases = self._leases.setdefault(node, {})
        for exchange_id in ended:
            leases.pop(exchange_id, None)
        for exchange_id, parts in changed.items():
            known = leases.get(exchange_id)
            opened = parts.opened if parts.opened is not None or known is None else known.opened
            leases[exchange_id] = LeaseParts(opened, parts.progress)
        whole = all(parts.opened is not None for parts in leases.values())
        return LeaseCount(len(leases) if whole else -1, before)

    async def nodes(self) -> Mapping[str, str]:
        return dict(self._beats)

    async def ids(self, node: str) -> set[str]:
        return set(self._leases.get(node, ()))

    async def counts(self, nodes: Collection[str]) -> Mapping[str, int]:
        return {node: len(self._leases.get(node, ())) for node in nodes}

    async def of(self, node: str) -> Mapping[str, LeaseParts]:
        leases = self._leases.get(node, {})
        return {exchange_id: parts for exchange_id, parts in leases.items() if parts.opened is not None}

    async def opened(self, exchange_id: str) -> bytes | None:
        announced = (leases[exchange_id].opened for leases in self._leases.values() if exchange_id in leases)
        return next((one for one in announced if one is not None), None)

    async def drop(self, node: str, exchange_ids: Collection[str]) -> None:
        for exchange_id in exchange_ids:
            self._leases.get(node, {}).pop(exchange_id, None)

    async def dismiss(self, node: str, beat: str) -> None:
        if self._beats.get(node) == beat:
            del self._beats[node]
            self._leases.pop(node, None)
