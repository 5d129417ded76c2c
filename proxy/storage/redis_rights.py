"""The rights that the user of the URL needs in Redis, and the check that they are given.

The check opens a connection, begins a transaction (MULTI), sends each command of the product, and closes the
connection. A server checks rights when it queues a command, and executes none of an unfinished transaction.

Invariant: the check changes nothing in the server, and needs no right to read access lists. A server that has no
transactions is not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from redis.asyncio import Redis, RedisCluster
from redis.exceptions import ResponseError

from proxy.storage.redis_errors import missing_right
from proxy.storage.redis_keys import RedisKeys

_KEYS = RedisKeys()
_RECORDS, _BUDGETS, _ROSTER = _KEYS.records(0), _KEYS.budgets("life"), _KEYS.roster("proxies")
_NODES, _LEASES, _CLAIM, _OWNER = _KEYS.nodes(), _KEYS.leases("n"), _KEYS.claim("c"), _KEYS.owner("o")

# A call of each command, with its key. A connection needs the right to `client setname` before.
_CALLS = f"""
info
ping
time
eval return 0
evalsha 0 0
del {_CLAIM}
exists {_BUDGETS}
expire {_BUDGETS} 1
get {_OWNER}
hdel {_LEASES} f
hexists {_BUDGETS} f
hget {_NODES} f
hgetall {_NODES}
hincrby {_BUDGETS} f 1
hkeys {_LEASES}
hlen {_LEASES}
hmget {_CLAIM} f
hscan {_BUDGETS} 0
hset {_NODES} f v
hsetnx {_BUDGETS} f v
hvals {_BUDGETS}
pexpire {_CLAIM} 1
set {_OWNER} v
unlink {_LEASES}
xack {_RECORDS} g 0-1
xadd {_RECORDS} * f v
xclaim {_RECORDS} g c 0 0-1
xdel {_RECORDS} 0-1
xgroup|create {_RECORDS} g 0
xgroup|delconsumer {_RECORDS} g c
xinfo|consumers {_RECORDS} g
xinfo|groups {_RECORDS}
xpending {_RECORDS} g
xrange {_RECORDS} - +
xreadgroup group g c streams {_RECORDS} >
zadd {_ROSTER} 0 m
zrange {_ROSTER} 0 1
zrangebylex {_BUDGETS} - +
zrangebyscore {_BUDGETS} 0 1
zrem {_ROSTER} m
zremrangebyscore {_ROSTER} 0 1
"""
_CLUSTER_CALLS = """
asking
cluster|slots
command
"""
# Each kind of key is read and written: a pattern may allow one of both.
_OF_EACH_KEY = "".join(
    f"get {key}\nset {key} v\n" for key in (_RECORDS, _BUDGETS, _ROSTER, _NODES, _LEASES, _CLAIM, _OWNER)
)

# All at once would keep the streams of a proxy waiting for milliseconds.
_AT_ONCE = 8


def commands(*, cluster: bool = False) -> list[str]:
    """The rights to commands, as an access list has them, without `+`."""
    calls = (_CALLS + (_CLUSTER_CALLS if cluster else "")).split("\n")
    return sorted({call.split()[0] for call in calls if call} | {"client|setname", "multi"})


def access_list(user: str, *, cluster: bool = False) -> str:
    """The command that creates the user; `PASSWORD` is a placeholder for its password."""
    rights = [*(f"~{pattern}" for pattern in _KEYS.patterns()), *(f"+{name}" for name in commands(cluster=cluster))]
    return f"ACL SETUSER {user} reset on >PASSWORD {' '.join(rights)}"


async def lacking(redis: Redis | RedisCluster) -> list[str]:
    """The rights that the user lacks, sorted: `+hset`, `~tokenweir:*`. Raises RedisError, RedisClusterException,
    OSError."""
    if not isinstance(redis, RedisCluster):
        pool = redis.connection_pool
        return await _lacking(pool.connection_class(**pool.connection_kwargs), _CALLS)
    await redis.initialize()
    found: set[str] = set()
    for node in redis.get_primaries():
        connection = node.connection_class(**node.connection_kwargs)
        found |= set(await _lacking(connection, _CALLS + _CLUSTER_CALLS))
    return sorted(found)


async def _lacking(connection: Any, calls: str) -> list[str]:
    sent = [call.replace("|", " ", 1).split() for call in (calls + _OF_EACH_KEY).split("\n") if call]
    found: set[str] = set()
    try:
        await connection.connect()
        await connection.send_command("MULTI")
        if (refused := await _error(connection)) is not None:  # without a transaction, the calls would be executed
            return sorted(_missing(refused, ()))
        for at in range(0, len(sent), _AT_ONCE):
            part = sent[at : at + _AT_ONCE]
            await connection.send_packed_command(connection.pack_commands(part))
            for call in part:
                found.update(_missing(await _error(connection), call))
    except ResponseError as error:  # to connect
        if (right := missing_right(error)) is None:
            raise
        return [right]
    finally:
        await connection.disconnect()
    return sorted(found)


async def _error(connection: Any) -> Exception | None:
    """The next answer, if it is an error."""
    try:
        await connection.read_response()
    except ResponseError as error:
        return error
    return None


def _missing(error: Exception | None, call: Sequence[str]) -> Iterator[str]:
    """The right that this call lacks."""
    right = None if error is None else missing_right(error)
    if right == "~":
        yield f"~{_pattern(call)}"
    elif right is not None:
        yield right


def _pattern(call: Sequence[str]) -> str:
    """The pattern of the key in the call."""
    (found,) = {pattern for pattern in _KEYS.patterns() for word in call if word.startswith(pattern.rstrip("*"))}
    return found
