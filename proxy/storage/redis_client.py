"""Makes clients for Redis or Valkey and maps their errors.

Invariants: the client library never retries a command: the caller decides; every error of the library or the network
becomes QueueUnavailable, with a message that contains no password and no record.
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
from redis.exceptions import AuthenticationError, BusyLoadingError, ReadOnlyError, RedisClusterException, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from proxy.storage.redis_errors import SentinelError, explained, lacks, sentinel_server, server_of
from proxy.storage.redis_rights import lacking

RedisClient: TypeAlias = Redis | RedisCluster
Word: TypeAlias = str | bytes | int

# How long a blocking command waits on the server (BLOCK): well below ANSWER_S.
BLOCK_MS = 1_000
# Longer than a server's pause for a fork; shorter than any lease.
ANSWER_S = 5.0
CONNECT_S = 5.0
# A connection that was idle for this long is checked by a PING before use: it may be half-open.
HEALTH_S = 15

VERSION_MIN = (6, 2)
_PORT, _SENTINEL_PORT = 6379, 26379
_TLS_OPTIONS = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname"})
_SENTINEL_OPTIONS = frozenset({"sentinel_username", "sentinel_password"})
_OPTIONS = _TLS_OPTIONS | _SENTINEL_OPTIONS | {"db"}


class QueueUnavailable(OSError):  # noqa: N818  named like LedgerUnavailable and JournalUnavailable
    """Redis cannot be reached, does not answer in time, or refuses; the command may have been executed."""


class QueueUnsuitable(ValueError):  # noqa: N818
    """The server may evict records, or is too old; the message is for the operator."""


def open_redis(url: str) -> RedisClient:
    """A client; it connects at its first use. Close it with `aclose`.

    `redis://[user:password@]host[:port][/db]`, `rediss://…` with TLS, `unix:///path[?db=n]`,
    `redis+sentinel://[user:password@]host:port,…/service[/db]`, `redis+cluster://[user:password@]host:port,…`; the
    last two with `rediss+` as well. Options: see `_OPTIONS`. Raises ValueError; its message contains no password.
    """
    address = _Address.of(url)
    if address.kind == "unix":
        return Redis(unix_socket_path=address.path, **address.connection())
    if address.kind == "sentinel":
        return _open_sentinel(address)
    if address.kind == "cluster":
        nodes = [ClusterNode(host, port) for host, port in address.hosts]
        # Keep the configured addresses as startup nodes, wherever the cluster moves meanwhile.
        return RedisCluster(
            startup_nodes=nodes, dynamic_startup_nodes=False, require_full_coverage=False, **address.connection()
        )
    (host, port), *more = address.hosts
    if more:
        raise ValueError("the queue's URL has several hosts: use redis+sentinel:// or redis+cluster://")
    return Redis(host=host, port=port, **address.connection())


async def check(redis: RedisClient) -> None:
    """Check the server. Raises QueueUnsuitable if it could lose records; QueueUnavailable if it does not answer, is no
    primary, or refuses the user."""
    if reason := await refusal(redis):
        raise QueueUnavailable(reason)
    async with map_errors(redis, "reading the queue server's INFO"):
        if isinstance(redis, RedisCluster):
            await redis.initialize()
            answers = [await redis.info(target_nodes=node) for node in redis.get_primaries()]
        else:
            answers = [await redis.info()]
    for answer in answers:
        _check_server(answer)
        if answer.get("role", "master") != "master":
            raise QueueUnavailable(explained(ReadOnlyError("READONLY"), server_of(redis)))
        if answer.get("loading"):
            raise QueueUnavailable(explained(BusyLoadingError("LOADING"), server_of(redis)))


async def refusal(redis: RedisClient) -> str | None:
    """Why the server refuses the user of the URL: a password that it does not accept, or a right that the user lacks.
    None: it does not refuse. Raises QueueUnavailable if it does not answer."""
    async with map_errors(redis, "checking the server"):
        try:
            rights = await lacking(redis)
        except AuthenticationError as error:
            return explained(error, server_of(redis))
        return f"{server_of(redis).name} {lacks(rights, server_of(redis))}" if rights else None


@asynccontextmanager
async def map_errors(
    redis: RedisClient, doing: str, unavailable: type[OSError] = QueueUnavailable
) -> AsyncIterator[None]:
    """Map every error of Redis within to `unavailable`, and drop connections that would fail again.

    `doing`: the operation, for the message. A task that is cancelled within ends.
    """
    task = asyncio.current_task()
    assert task is not None
    cancelled_before = task.cancelling()
    failed: OSError | None = None
    try:
        yield
    except (RedisError, RedisClusterException, OSError, AttributeError, TypeError, RuntimeError) as raised:
        error = RedisConnectionError("the connection was lost") if _lost_in_loop(raised) else raised
        if isinstance(error, AttributeError | TypeError | RuntimeError):
            raise
        with suppress(RedisError, OSError):
            await _renew(redis, error)
        failed = unavailable(f"{doing}: {explained(error, server_of(redis))}")
    if task.cancelling() > cancelled_before:  # before Python 3.12, wait_for in the library can swallow a cancellation
        raise asyncio.CancelledError
    if failed is not None:
        raise failed


async def pipelined(redis: RedisClient, commands: Iterable[Sequence[Word]]) -> list[Any]:
    """The answers to `commands`, sent together but not as a transaction; the name of each must be a str.

    Raises the first error among them, after all were tried.
    """
    pipeline = redis.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    # The library's error would quote the command, and with it the record.
    answers = await pipeline.execute(raise_on_error=False)
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


@dataclass(frozen=True, slots=True)
class _Address:
    """A parsed URL."""

    kind: str
    """kind of the URL: single, unix, sentinel or cluster"""
    tls: bool
    hosts: list[tuple[str, int]]
    path: str
    username: str | None
    password: str | None = field(repr=False)
    options: dict[str, str] = field(repr=False)

    @classmethod
    def of(cls, url: str) -> _Address:
        """Parse a URL. Raises ValueError, whose message quotes only the scheme and the names of options."""
        try:
            parts = urlsplit(url)
        except ValueError:
            raise ValueError("the queue's URL is invalid") from None
        scheme, _, kind = parts.scheme.partition("+")
        if scheme == "unix":
            kind = "unix"
        elif scheme not in {"redis", "rediss"} or kind not in {"", "sentinel", "cluster"}:
            raise ValueError(f"{parts.scheme}:// is not a scheme of a queue's URL")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        _check_options(options, parts.scheme)
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
        """Options of every connection to a data server."""
        named = {"username": self.username, "password": self.password}
        return {**self.transport(), **named, "client_name": "tokenweir", "db": self.db}

    def transport(self) -> dict[str, Any]:
        """Options of every connection, to sentinels too."""
        options: dict[str, Any] = {
            "socket_timeout": ANSWER_S,
            "socket_connect_timeout": CONNECT_S,
            "health_check_interval": HEALTH_S,
            "protocol": 2,
            "decode_responses": False,
            "retry": Retry(NoBackoff(), 0),
            "driver_info": None,  # two commands of each connection, which need a right of their own
        }
        if self.tls:
            options |= {name: value for name, value in self.options.items() if name in _TLS_OPTIONS}
            options |= {"ssl": True, "ssl_check_hostname": self.options.get("ssl_check_hostname") != "false"}
        return options

    @property
    def db(self) -> int:
        """The database number, from the option or the last part of the path."""
        text = self.options.get("db") or (self.path.rpartition("/")[2] if self.kind == "single" else "")
        if self.kind == "sentinel":
            text = text or self.path.strip("/").partition("/")[2]
        if self.kind == "cluster":
            text = text or self.path.strip("/")
        if text and not (text.isascii() and text.isdigit()):
            raise ValueError("the queue's database is not a number")
        if self.kind == "cluster" and int(text or 0):
            raise ValueError("the queue's database must be 0: a cluster has no other")
        return int(text or 0)


def _check_options(options: Mapping[str, str], scheme: str) -> None:
    """Refuse options without effect. Raises ValueError."""
    for applies, names, why in (
        (False, options.keys() - _OPTIONS, f"unknown options (known: {', '.join(sorted(_OPTIONS))})"),
        (scheme.startswith("rediss"), options.keys() & _TLS_OPTIONS, f"options of TLS, which {scheme}:// does not use"),
        (
            scheme.endswith("+sentinel"),
            options.keys() & _SENTINEL_OPTIONS,
            f"options of a sentinel, not of {scheme}://",
        ),
    ):
        if names and not applies:
            raise ValueError(f"the queue's URL has {why}: {', '.join(sorted(names))}")


class _PrimaryPool(SentinelConnectionPool):
    """A pool of connections to the current primary; closing the pool closes the connections to the sentinels too."""

    async def aclose(self) -> None:
        """Close all connections."""
        await super().aclose()
        await self.sentinel_manager.aclose()


class _Sentinel(Sentinel):
    """The sentinels; a failure says why each of them names no primary."""

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """The address of the primary. Raises SentinelError."""
        reasons: list[str] = []
        for number, sentinel in enumerate(self.sentinels):
            server = sentinel_server(sentinel)
            try:
                watched: Any = await sentinel.sentinel_masters()
            except (RedisError, OSError) as error:
                reasons.append(explained(error, server))
                continue
            state = watched.get(service_name)
            if state is None:
                names = ", ".join(watched) or "nothing"
                reasons.append(f"{server.name} watches {names}, not {service_name!r}: correct the name in the URL")
            elif not self.check_master_state(state, service_name):
                reasons.append(f"{server.name} sees no living primary of {service_name!r}: wait for the failover")
            else:
                self.sentinels.insert(0, self.sentinels.pop(number))
                return state["ip"], state["port"]
        raise SentinelError("; ".join(reasons))


def _open_sentinel(address: _Address) -> Redis:
    service = address.path.strip("/").partition("/")[0]
    if not service:
        raise ValueError("redis+sentinel:// must end in /service, the name of the primary")
    sentinel_options = {
        **address.transport(),
        "username": address.options.get("sentinel_username"),
        "password": address.options.get("sentinel_password"),
    }
    sentinel = _Sentinel(address.hosts, sentinel_kwargs=sentinel_options, **address.connection())  # type: ignore[no-untyped-call]
    client: Redis = sentinel.master_for(service, connection_pool_class=_PrimaryPool)
    return client


def _hosts(listed: str, port: int) -> list[tuple[str, int]]:
    """host[:port], … → pairs. Raises ValueError."""
    hosts: list[tuple[str, int]] = []
    for one in listed.split(","):
        host, digits = one, ""
        if not one.endswith("]"):  # an IPv6 address without a port
            host, _, digits = one.rpartition(":") if ":" in one else (one, "", "")
        if digits and not (digits.isascii() and digits.isdigit() and 0 < int(digits) < 65_536):
            raise ValueError("the queue's port is not a number from 1 to 65535")
        hosts.append((unquote(host).strip("[]") or "localhost", int(digits or port)))
    return hosts


def _check_server(answer: Mapping[str, Any]) -> None:
    version = str(answer.get("redis_version", ""))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < VERSION_MIN:
        raise QueueUnsuitable(f"the queue's server is Redis {version or 'of unknown version'}: 6.2 or newer is needed")
    policy = answer.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise QueueUnsuitable(
            f"the queue's server has maxmemory-policy {policy}, which evicts records: set it to noeviction"
        )


_UVLOOP_CLOSED = "the handler is closed"


def _lost_in_loop(error: Exception) -> bool:
    """True for the error of `writelines` on a lost connection: asyncio's (gh-136234, from 3.12 to late 3.13), or
    uvloop's after its handle is closed."""
    if isinstance(error, RuntimeError):
        return str(error).endswith(_UVLOOP_CLOSED)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else trace.tb_frame.f_code.co_name
    return isinstance(error, AttributeError | TypeError) and where == "writelines"


async def _renew(redis: RedisClient, error: Exception) -> None:
    """Drop connections to a server that is no longer in service."""
    if isinstance(redis, RedisCluster):
        gone = RedisConnectionError, RedisTimeoutError, RedisClusterException, ReadOnlyError, OSError
        if isinstance(error, gone) or str(error).startswith("CLUSTERDOWN"):
            await redis.aclose()  # the next command reads the topology again
    elif isinstance(error, ReadOnlyError):  # the address may resolve to another server by now
        await redis.connection_pool.disconnect(inuse_connections=False)
