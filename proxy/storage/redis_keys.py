"""The names of all keys in Redis.

| key | its content | pattern |
|---|---|---|
| `{tokenweir:<shard>}:records` | the queue: a stream of records for each shard | `{tokenweir:*` |
| `{tokenweir:budgets}:<name>` | the budget store: reservations, counters, spend totals, rate windows | `{tokenweir:*` |
| `{tokenweir}:proxies`, `{tokenweir}:workers:<shards>` | the lists of live processes | `{tokenweir}:*` |
| `{tokenweir}:stops` | the exchanges that operators have asked to stop | `{tokenweir}:*` |
| `tokenweir:nodes`, `tokenweir:<node>:leases` | the lease registry | `tokenweir:*` |
| `tokenweir:claim:<name>`, `tokenweir:owner:<name>` | idempotency claims, owners of responses | `tokenweir:*` |

Invariant: names are stored data. They begin in three ways, because only keys with a hash tag in braces share a slot of
a cluster; to rename them would part versions that run side by side, and lose what is in flight.
"""

from __future__ import annotations

PREFIX = "tokenweir"


class RedisKeys:
    """The names of the keys of one deployment."""

    def __init__(self, prefix: str = PREFIX) -> None:
        self._prefix = prefix

    def patterns(self) -> tuple[str, ...]:
        """The patterns that all names match, as an access list (`~<pattern>`) has them."""
        return f"{self._prefix}:*", f"{{{self._prefix}}}:*", f"{{{self._prefix}:*"

    def records(self, shard: int) -> str:
        """The stream of a shard."""
        return f"{{{self._prefix}:{shard}}}:records"

    def budgets(self, name: str) -> str:
        """A key of the budget store."""
        return f"{{{self._prefix}:budgets}}:{name}"

    def roster(self, kind: str) -> str:
        """The list of the live processes of one kind."""
        return f"{{{self._prefix}}}:{kind}"

    def stops(self) -> str:
        """The exchanges that operators have asked to stop."""
        return f"{{{self._prefix}}}:stops"

    def nodes(self) -> str:
        """The beats of all nodes."""
        return f"{self._prefix}:nodes"

    def leases(self, node: str) -> str:
        """The leases of a node."""
        return f"{self._prefix}:{node}:leases"

    def claim(self, name: str) -> str:
        """An idempotency claim."""
        return f"{self._prefix}:claim:{name}"

    def owner(self, name: str) -> str:
        """The owner of a response."""
        return f"{self._prefix}:owner:{name}"
