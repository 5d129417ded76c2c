"""The door to Redis or Valkey: how a client is made, and what its errors are called.

Law: nothing is ever sent twice behind our back: what was not answered is QueueUnavailable, and who asked decides. Every
error of the client library or the network becomes QueueUnavailable, in words that hold no password and no record.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisClusterException, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

RedisClient: TypeAlias = Redis | RedisCluster
Word: TypeAlias = str | bytes | int

# A server that waits in our name (BLOCK) must answer well within the time we wait for an answer.
BLOCK_MS = 1_000
# Long enough for a server that forks or is stopped for a moment; shorter than any lease.
ANSWER_S = 5.0
CONNECT_S = 5.0
# A connection that was at rest for this long is tried with a PING first: half-open ones are found before they are used.
HEALTH_S = 15

VERSION_MIN = (6, 2)
_PORT, _SENTINEL_PORT = 6379, 26379
_TLS_OPTIONS = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname"})
_OPTIONS = _TLS_OPTIONS | {"db", "sentinel_username", "sentinel_password"}
_WORDS_MAX = 200


class QueueUnavailable(OSError):  # noqa: N818  named as LedgerUnavailable and JournalUnavailable are
    """Redis cannot be reached, does not answer in time, or refuses; what was asked may have happened."""


class QueueUnsuitable(ValueError):  # noqa: N818
    """The server could lose records by itself, or is too old: words for the operator."""


def open_redis(url: str) -> RedisClient:
    """A client; it connects when it is first used, and `aclose` ends it.

    `redis://[user:password@]host[:port][/db]`, `rediss://…` with TLS, `unix:///path[?db=n]`,
    `redis+sentinel://[user:password@]host:port,…/service[/db]`, `redis+cluster://[user:password@]host:port,…`; the
    last two with `rediss+` as well. Options: those of `_OPTIONS`. Raises ValueError, in words that hold no password.
    """
    address = _Address.of(url)
    if address.kind == "unix":
        return Redis(unix_socket_path=address.path, **address.connection())
    if address.kind == "sentinel":
        return _open_sentinel(address)
    if address.kind == "cluster":
        nodes = [ClusterNode(host, port) for host, port in address.hosts]
        # The addresses that were configured stay the way in, though the cluster may have moved elsewhere meanwhile.
        return RedisCluster(
            startup_nodes=nodes, dynamic_startup_nodes=False, require_full_coverage=False, **address.connection()
        )
    (host, port), *more = address.hosts
    if more:
        raise ValueError("several hosts need redis+sentinel:// or redis+cluster://")
    return Redis(host=host, port=port, **address.connection())


async def check(redis: RedisClient) -> None:
    """Raises QueueUnsuitable if the server must not carry records; QueueUnavailable if it cannot be asked."""
    async with door(redis, "asking the queue's server what it is"):
        if isinstance(redis, RedisCluster):
            await redis.initialize()
            answers = [await redis.info(target_nodes=node) for node in redis.get_primaries()]
        else:
            answers = [await redis.info()]
    for answer in answers:
        _check_server(answer)


@asynccontextmanager
async def door(redis: RedisClient, doing: str) -> AsyncIterator[None]:
    """Within it, whatever goes wrong with Redis is QueueUnavailable, and is not met again on the next try if a new
    connection, or a look at where the cluster is now, can help. A task that is cancelled within it ends."""
    task = asyncio.current_task()
    assert task is not None
    cancelled_before = task.cancelling()
    failed: QueueUnavailable | None = None
    try:
        yield
    except (RedisError, RedisClusterException, OSError, AttributeError, TypeError) as raised:
        error = RedisConnectionError("the connection was lost") if _lost_in_asyncio(raised) else raised
        if isinstance(error, AttributeError | TypeError):
            raise
        with suppress(RedisError, OSError):
            await _renew(redis, error)
        failed = QueueUnavailable(f"{doing}: {_words(error)}")
    if task.cancelling() > cancelled_before:  # the library's wait_for can swallow that, before Python 3.12
        raise asyncio.CancelledError
    if failed is not None:
        raise failed


async def pipelined(redis: RedisClient, commands: Iterable[Sequence[Word]]) -> list[Any]:
    """The answers to `commands`, which go out together but are no transaction; the name of each must be a str. Raises
    the first error among them, after all were tried."""
    pipeline = redis.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    # The library's own error would quote the command, and with it the record.
    answers = await pipeline.execute(raise_on_error=False)
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


@dataclass(frozen=True, slots=True)
class _Address:
    """A URL, read."""

    kind: str
    """single, unix, sentinel or cluster"""
    tls: bool
    hosts: list[tuple[str, int]]
    path: str
    username: str | None
    password: str | None = field(repr=False)
    options: dict[str, str] = field(repr=False)

    @classmethod
    def of(cls, url: str) -> _Address:
        """Raises ValueError, in words that hold nothing of the URL but its scheme and the names of its options."""
        try:
            parts = urlsplit(url)
        except ValueError:
            raise ValueError("the queue's address is not a URL") from None
        scheme, _, kind = parts.scheme.partition("+")
        if scheme == "unix":
            kind = "unix"
        elif scheme not in {"redis", "rediss"} or kind not in {"", "sentinel", "cluster"}:
            raise ValueError(f"{parts.scheme}:// is no address of a queue")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := options.keys() - _OPTIONS:
            raise ValueError(f"the queue's address has unknown options: {', '.join(sorted(unknown))}")
        user, _, hosts = parts.netloc.rpartition("@")
        username, _, password = user.partition(":")
        return cls(
            kind or "single",
            scheme == "rediss",
            _hosts(hosts, _SENTINEL_PORT if kind == "sentinel" else _PORT),
            unquote(parts.path),
            unquote(username) or None,
            unquote(password) or None,
            options,
        )

    def connection(self) -> dict[str, Any]:
        """What every connection to a server of records is opened with."""
        named = {"username": self.username, "password": self.password}
        return {**self.transport(), **named, "client_name": "tokenweir", "db": self.db}

    def transport(self) -> dict[str, Any]:
        """How to speak to any server of this address."""
        options: dict[str, Any] = {
            "socket_timeout": ANSWER_S,
            "socket_connect_timeout": CONNECT_S,
            "health_check_interval": HEALTH_S,
            "protocol": 2,
            "decode_responses": False,
            "retry": Retry(NoBackoff(), 0),
        }
        if self.tls:
            options |= {name: value for name, value in self.options.items() if name in _TLS_OPTIONS}
            options |= {"ssl": True, "ssl_check_hostname": self.options.get("ssl_check_hostname") != "false"}
        return options

    @property
    def db(self) -> int:
        """The number of the database: the last part of the path, or an option."""
        text = self.options.get("db") or (self.path.rpartition("/")[2] if self.kind == "single" else "")
        if self.kind == "sentinel":
            text = text or self.path.strip("/").partition("/")[2]
        if text and not (text.isascii() and text.isdigit()):
            raise ValueError("the queue's database is not a number")
        return int(text or 0)


class _PrimaryPool(SentinelConnectionPool):
    """Connections to whoever is primary now; the way to the sentinels is closed with them."""

    async def aclose(self) -> None:
        """Close all."""
        await super().aclose()
        await self.sentinel_manager.aclose()


def _open_sentinel(address: _Address) -> Redis:
    service = address.path.strip("/").partition("/")[0]
    if not service:
        raise ValueError("redis+sentinel:// must end in /service, the name of the primary")
    asking = {
        **address.transport(),
        "username": address.options.get("sentinel_username"),
        "password": address.options.get("sentinel_password"),
    }
    sentinel = Sentinel(address.hosts, sentinel_kwargs=asking, **address.connection())  # type: ignore[no-untyped-call]
    client: Redis = sentinel.master_for(service, connection_pool_class=_PrimaryPool)
    return client


def _hosts(listed: str, port: int) -> list[tuple[str, int]]:
    """host[:port], … → pairs. Raises ValueError."""
    found: list[tuple[str, int]] = []
    for one in listed.split(","):
        host, digits = one, ""
        if not one.endswith("]"):  # an IPv6 address without a port
            host, _, digits = one.rpartition(":") if ":" in one else (one, "", "")
        if digits and not (digits.isascii() and digits.isdigit() and 0 < int(digits) < 65_536):
            raise ValueError("the queue's port is not a number from 1 to 65535")
        found.append((unquote(host).strip("[]") or "localhost", int(digits or port)))
    return found


def _check_server(answer: Mapping[str, Any]) -> None:
    version = str(answer.get("redis_version", ""))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < VERSION_MIN:
        raise QueueUnsuitable(f"the queue's server is Redis {version or 'of no version'}: 6.2 or newer is needed")
    policy = answer.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise QueueUnsuitable(
            f"the queue's server has maxmemory-policy {policy}: it would throw records away; set it to noeviction"
        )


def _lost_in_asyncio(error: Exception) -> bool:
    """Since Python 3.12 `writelines` of asyncio's own transport fails where the connection is lost: gh-136234, mended
    late in 3.13. uvloop's does not."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else trace.tb_frame.f_code.co_name
    return isinstance(error, AttributeError | TypeError) and where == "writelines"


async def _renew(redis: RedisClient, error: Exception) -> None:
    """Let go of what leads to a server that does not serve any more."""
    if isinstance(redis, RedisCluster):
        gone = RedisConnectionError, RedisTimeoutError, RedisClusterException, ReadOnlyError, OSError
        if isinstance(error, gone) or str(error).startswith("CLUSTERDOWN"):
            await redis.aclose()  # the next command asks where everything is
    elif isinstance(error, ReadOnlyError):  # its address may lead to another server by now
        await redis.connection_pool.disconnect(inuse_connections=False)


def _words(error: Exception) -> str:
    text = str(error)
    if isinstance(error, ResponseError):  # a server may quote what it was sent
        text = text.partition(", with args")[0]
    return f"{type(error).__name__}: {text[:_WORDS_MAX]}"
