"""An error of Redis or Valkey as a sentence for the operator: which server, what is wrong, what to do about it.

Invariant: a sentence contains no password, no record and no name of a key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException, ResponseError

from proxy.storage.redis_keys import RedisKeys

_MESSAGE_CHARS_MAX = 200


class SentinelError(RedisConnectionError):
    """No sentinel names a primary; the text is a sentence for the operator."""


class RedisServer(NamedTuple):
    """A server, as a sentence names it."""

    name: str
    """begins the sentence: `the Redis at 127.0.0.1:6379`"""
    user: str
    db: int = 0
    tls: bool = False
    place: str = "the URL (redis://user:password@host)"
    """where user name and password are set"""


def server_of(redis: Redis | RedisCluster) -> RedisServer:
    """The server of a client."""
    if isinstance(redis, RedisCluster):
        hosts = ", ".join(redis.nodes_manager.startup_nodes)
        return _server(f"the Redis cluster at {hosts}", redis.connection_kwargs)
    pool, options = redis.connection_pool, redis.connection_pool.connection_kwargs
    if not isinstance(pool, SentinelConnectionPool):
        return _server(f"the Redis at {_address(options)}", options)
    known = pool.master_address
    where = f" at {_host(*known)}" if known is not None else ""
    return _server(f"the Redis{where} (the primary of {pool.service_name!r})", options)


def sentinel_server(sentinel: Redis) -> RedisServer:
    """The server of a client of one sentinel."""
    options = sentinel.connection_pool.connection_kwargs
    place = "the URL's options sentinel_username and sentinel_password"
    return _server(f"the sentinel at {_address(options)}", options)._replace(place=place)


def explained(error: Exception, server: RedisServer) -> str:
    """The sentence. `server`: from which the error came."""
    error = _cause(error)
    if isinstance(error, SentinelError):
        return str(error)
    code, text = getattr(error, "status_code", None), str(error)
    text = f"{code} {text}" if code and not text.startswith(code) else text
    if isinstance(error, ResponseError):  # a server may quote the command's arguments
        text = text.partition(", with args")[0]
    if (right := missing_right(error)) is not None:
        return f"{server.name} {lacks([right], server)}"
    for known, says in _KNOWN:
        if known.search(text):
            detail = text[:_MESSAGE_CHARS_MAX].rstrip(".")
            return f"{server.name} {says.format(**server._asdict() | _HINTS[server.tls], detail=detail)}"
    return f"{server.name}: {type(error).__name__}: {text[:_MESSAGE_CHARS_MAX]}"


def missing_right(error: Exception) -> str | None:
    """The right that the user lacks, as an access list has it (`+hset`); `~` for one of the patterns of keys. None: the
    error is another one."""
    text = str(error)
    if getattr(error, "status_code", None) != "NOPERM" and not text.startswith(_NO_RIGHT):
        return None
    command = _COMMAND.search(text)
    return f"+{command[1].lower()}" if command else "~"


def lacks(rights: Iterable[str], server: RedisServer) -> str:
    """The end of a sentence about a user without these rights."""
    words = " ".join(_PATTERNS if right == "~" else right for right in rights)
    return f"does not give its user {server.user!r} the right to {words}: ACL SETUSER {server.user} {words}"


# The first word of an error of a script that lacks a right, in Redis 7 and Valkey, and in Redis 6.
_NO_RIGHT = ("NOPERM", "ACL failure in script", "ERR ACL failure in script", "The user executing the script")
_COMMAND = re.compile(r"run the '([\w|.-]+)' command")
_PATTERNS = " ".join(f"~{pattern}" for pattern in RedisKeys().patterns())

# What else may be wrong with a connection, by whether it is for TLS.
_HINTS = {
    True: {"tls": ", and that this port is for TLS", "plain": ""},
    False: {"tls": "", "plain": "; if it always does, the port may be for TLS: write rediss:// in the URL"},
}
_KNOWN: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), says)
    for pattern, says in (
        (r"^WRONGPASS|invalid password|Invalid Username",
         "refuses the user {user!r} with this password: correct both in {place}"),
        (r"^NOAUTH", "wants a user name or a password: set them in {place}"),
        (r"without any password configured", "has no password: remove it from {place}"),
        (r"^READONLY|previous master is now a slave",
         "is a replica, which accepts no records: point the URL to the primary or to Sentinel"),
        (r"^LOADING", "is still loading its data: wait for it"),
        (r"unknown command '(?i:sentinel)", "is no sentinel: correct the address, or write redis:// in the URL"),
        (r"^MASTERDOWN", "is a replica that has lost its primary: point the URL to the primary or to Sentinel"),
        (r"^MISCONF", "cannot write to its disk, and accepts no records: check its log and its disk"),
        (r"^OOM", "has no memory left (maxmemory): add memory or workers"),
        (r"max number of clients reached", "has too many clients: raise its maxclients"),
        (r"DB index is out of range|Invalid Database|SELECT is not allowed in cluster mode",
         "has no database {db}: correct its number in the URL"),
        (r"^(MOVED|ASK) ", "is a part of a cluster: write redis+cluster:// in the URL"),
        (r"Cluster mode is not enabled|cluster support disabled", "is no cluster: write redis:// in the URL"),
        (r"^CLUSTERDOWN|not covered", "is a cluster without some of its servers: {detail}"),
        (r"^DENIED", "is in protected mode, and accepts connections of its own machine only: give it a password"),
        (r"(?i)certificate", "has a certificate that is not trusted: check name and option ssl_ca_certs ({detail})"),
        (r"SSL|record layer", "speaks no TLS at this port: write redis:// for rediss:// in the URL ({detail})"),
        (r"(?i)protocol error", "speaks another protocol at this port; for TLS, write rediss:// in the URL"),
        (r"Connection closed|reset by peer|connection was lost", "has closed the connection{plain}"),
        (r"^Timeout|timed out", "does not answer in time: check its load and the network{tls} ({detail})"),
        (r"^Error .*connecting to", "cannot be reached: check its address, and that it runs ({detail})"),
    )
)  # fmt: skip


def _cause(error: Exception) -> Exception:
    """The error that a cluster's client has wrapped."""
    for inner in _wrapped(error):
        if missing_right(inner) is not None or not isinstance(inner, RedisClusterException):
            return inner
    return error


def _wrapped(error: Exception) -> Iterator[Exception]:
    inner: BaseException | None = error
    while isinstance(inner, RedisClusterException):
        inner = inner.__cause__ or inner.__context__
        if isinstance(inner, Exception):
            yield inner


def _server(name: str, options: dict[str, Any]) -> RedisServer:
    tls = any(option.startswith("ssl_") for option in options)
    return RedisServer(name, str(options.get("username") or "default"), int(options.get("db") or 0), tls)


def _address(options: dict[str, Any]) -> str:
    return str(options["path"]) if "path" in options else _host(options.get("host"), options.get("port"))


def _host(host: object, port: object) -> str:
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
