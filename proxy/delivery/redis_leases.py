"""The lease registry on Redis: one hash of leases for each node, and one hash with the beats of all nodes.

Invariants: a reader sees both parts of a lease or neither: one command on one key writes and removes them. All data may
be lost at any time: nodes detect the loss from the previous beat and the count, and announce their leases again.

A node's hash has three kinds of fields: `o<exchange>` (JSON of the Opened), `p<exchange>` (its raw progress slot) and
`@` (the beat of the last write): a lease that is missing next to a beat was not written up to that beat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from proxy.delivery.leases import LeaseCount, LeaseParts
from proxy.storage.redis_client import RedisClient, Word, map_errors, pipelined
from proxy.storage.redis_keys import PREFIX, RedisKeys

_BEAT, _OPENED, _PROGRESS = b"@", b"o", b"p"
# A field in the hash of all nodes, written at each read of them. No node has this name.
_CHECKED = b"@"

# Leases of one command: it blocks the server for about 0.1 ms.
_AT_ONCE = 250
# Names decoded without a pause: 0.3 ms.
_NAMES_AT_ONCE = 2_000

_DISMISS = """
if redis.call("HGET", KEYS[1], ARGV[1]) == ARGV[2] then return redis.call("HDEL", KEYS[1], ARGV[1]) end
return 0
"""


class RedisLeases:
    """A LeaseRegistry on Redis. Every method raises QueueUnavailable."""

    def __init__(self, redis: RedisClient, *, prefix: str = PREFIX) -> None:
        self._redis: Any = redis  # the library types its answers for all protocols at once
        self._keys = RedisKeys(prefix)
        self._nodes = _bytes(self._keys.nodes())

    async def renew(
        self, node: str, beat: str, changed: Mapping[str, LeaseParts], ended: Collection[str]
    ) -> LeaseCount:
        key = self._key(node)
        fields: list[Word] = [_BEAT, _bytes(beat)]
        for exchange_id, parts in changed.items():
            name = _bytes(exchange_id)
            fields += (_PROGRESS + name, parts.progress)
            if parts.opened is not None:
                fields += (_OPENED + name, parts.opened)
        commands: list[tuple[Word, ...]] = [
            ("HGET", key, _BEAT),
            ("HSET", key, *fields),
            ("HLEN", key),
            ("HSET", self._nodes, _bytes(node), _bytes(beat)),
        ]
        if ended:  # before the beat is written
            commands.insert(1, ("HDEL", key, *_fields_of(ended)))
        async with map_errors(self._redis, "renewing leases"):
            before, *_, fields_there, _ = await pipelined(self._redis, commands)
        leases, half = divmod(fields_there - 1, 2)
        return LeaseCount(-1 if half else leases, None if before is None else _text(before))

    async def nodes(self) -> Mapping[str, str]:
        """Read every node's last beat, and write one field.

        A server that is full or read-only still answers reads, but no beat changes: the write fails then, so that no
        node is taken for dead.
        """
        async with map_errors(self._redis, "reading nodes"):
            _, answer = await pipelined(self._redis, [("HSET", self._nodes, _CHECKED, b""), ("HGETALL", self._nodes)])
        return {_text(node): _text(beat) for node, beat in _pairs(answer).items() if node != _CHECKED}

    async def ids(self, node: str) -> set[str]:
        async with map_errors(self._redis, "reading lease ids"):
            [names] = await pipelined(self._redis, [("HKEYS", self._key(node))])
        ids: set[str] = set()
        for at in range(0, len(names), _NAMES_AT_ONCE):
            ids.update(_text(name[1:]) for name in names[at : at + _NAMES_AT_ONCE] if name != _BEAT)
            await asyncio.sleep(0)  # runs in a proxy, whose streams must not wait for 20,000 names
        return ids

    async def counts(self, nodes: Collection[str]) -> Mapping[str, int]:
        if not nodes:
            return {}
        async with map_errors(self._redis, "counting leases"):
            lengths = await pipelined(self._redis, [("HLEN", self._key(node)) for node in nodes])
        return {node: fields // 2 for node, fields in zip(nodes, lengths, strict=True)}  # two of each, and the beat

    async def of(self, node: str) -> Mapping[str, LeaseParts]:
        async with map_errors(self._redis, "reading leases"):
            [answer] = await pipelined(self._redis, [("HGETALL", self._key(node))])
        fields = _pairs(answer)
        return {
            _text(name[1:]): LeaseParts(opened, fields.get(_PROGRESS + name[1:], b""))
            for name, opened in fields.items()
            if name.startswith(_OPENED)
        }

    async def opened(self, exchange_id: str) -> bytes | None:
        name = _OPENED + _bytes(exchange_id)
        async with map_errors(self._redis, "reading a lease"):
            [nodes] = await pipelined(self._redis, [("HKEYS", self._nodes)])
            commands = [("HGET", self._key(_text(node)), name) for node in nodes if node != _CHECKED]
            answers = await pipelined(self._redis, commands) if commands else []
        return next((one for one in answers if one is not None), None)

    async def drop(self, node: str, exchange_ids: Collection[str]) -> None:
        fields = _fields_of(exchange_ids)
        slices = [fields[at : at + 2 * _AT_ONCE] for at in range(0, len(fields), 2 * _AT_ONCE)]
        async with map_errors(self._redis, "removing leases"):
            await pipelined(self._redis, [("HDEL", self._key(node), *names) for names in slices])

    async def dismiss(self, node: str, beat: str) -> None:
        """Remove the leases first, so that none is left without its node.

        A node that resumes in between detects the loss at its next renewal and announces its leases again.
        """
        async with map_errors(self._redis, "removing a node"):
            [last] = await pipelined(self._redis, [("HGET", self._nodes, _bytes(node))])
            if last == _bytes(beat):
                await pipelined(self._redis, [("UNLINK", self._key(node))])
                await self._redis.eval(_DISMISS, 1, self._nodes, _bytes(node), _bytes(beat))

    def _key(self, node: str) -> bytes:
        return _bytes(self._keys.leases(node))


def _fields_of(exchange_ids: Collection[str]) -> list[bytes]:
    return [kind + _bytes(exchange_id) for exchange_id in exchange_ids for kind in (_OPENED, _PROGRESS)]


def _pairs(answer: Any) -> dict[bytes, bytes]:
    """HGETALL's answer: a list of fields and values, or a dict, depending on the protocol."""
    return answer if isinstance(answer, dict) else dict(zip(answer[::2], answer[1::2], strict=True))


# A name that is not UTF-8 is foreign; surrogateescape keeps its bytes, so that it can be removed.
def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
