"""Every way to a server, from a plain one to a cluster: found, tried once, and lost without a word of its password."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from redis.asyncio import RedisCluster

from proxy.delivery.redis_queue import RedisQueue
from proxy.journal.journal import Pending
from proxy.storage.redis_client import (
    QueueUnavailable,
    QueueUnsuitable,
    RedisClient,
    check,
    map_errors,
    open_redis,
    pipelined,
)
from tests.support.certificates import Authority
from tests.support.faulty import FaultyPath
from tests.support.net import closed_port, free_port
from tests.support.scripted_redis import ScriptedRedis
from tests.support.valkey import Valkey

PASSWORD = "canary/p@ss word:?#%"
QUOTED = "canary%2Fp%40ss%20word%3A%3F%23%25"
Open = Callable[[str], RedisClient]


async def ask(client: RedisClient, *words: str) -> Any:
    async with map_errors(client, "asking"):
        return await client.execute_command(*words)


async def ping(client: RedisClient) -> None:
    assert await ask(client, "ECHO", "hello") == b"hello"


# -- addresses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (f"http://u:{QUOTED}@h", "http:// is not a scheme"),
        (f"redis+other://u:{QUOTED}@h", r"redis\+other:// is not a scheme"),
        (f"redis://u:{QUOTED}@h:port", "port is not a number"),
        (f"redis://u:{QUOTED}@h:99999", "port is not a number"),
        (f"redis://u:{QUOTED}@a:1,b:2", "has several hosts"),
        (f"redis://u:{QUOTED}@h/one", "database is not a number"),
        (f"redis://u:{QUOTED}@h?socket_timeout=0.1", r"unknown options \(known: .*\): socket_timeout"),
        (f"redis+sentinel://u:{QUOTED}@h", "must end in /service"),
        (f"redis+sentinel://u:{QUOTED}@h/main/x", "database is not a number"),
        (f"redis://u:{QUOTED}@[::1", "URL is invalid"),
        (f"redis+cluster://u:{QUOTED}@h/1", "must be 0: a cluster has no other"),
        (f"redis+cluster://u:{QUOTED}@h?db=1", "must be 0: a cluster has no other"),
        (f"redis://u:{QUOTED}@h?ssl_ca_certs=x", "options of TLS, which redis:// does not use: ssl_ca_certs"),
        (
            f"redis://u:{QUOTED}@h?sentinel_password={QUOTED}",
            "options of a sentinel, not of redis://: sentinel_p",
        ),
    ],
)
def test_an_address_that_is_none_is_refused_without_a_word_of_it(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        open_redis(url)
    assert "canary" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h", {"host": "h", "port": 6379, "db": 0, "username": None, "password": None}),
        (f"redis://u:{QUOTED}@h:7/3", {"port": 7, "db": 3, "username": "u", "password": PASSWORD}),
        ("redis://:p@[::1]:7", {"host": "::1", "port": 7, "username": None, "password": "p"}),
        ("redis://[::1]?db=2", {"host": "::1", "port": 6379, "db": 2}),
        ("unix:///run/redis.sock?db=2", {"path": "/run/redis.sock", "db": 2}),
        ("redis+sentinel://u:p@a:1,b/main/4", {"db": 4, "username": "u", "password": "p"}),
    ],
)
async def test_an_address_says_where_and_as_whom(url: str, expected: dict[str, object], redis_to: Open) -> None:
    client = redis_to(url)
    assert not isinstance(client, RedisCluster)
    options = client.connection_pool.connection_kwargs
    assert {name: options[name] for name in expected} == expected


async def test_no_client_says_its_password(redis_to: Open) -> None:
    for url in ("redis://u:canary@h", "redis+sentinel://u:canary@h/main?sentinel_password=canary"):
        assert "canary" not in repr(redis_to(url))
    assert "canary" not in repr(redis_to("redis+cluster://u:canary@127.0.0.1"))


# -- one server ----------------------------------------------------------------------------------------------------


async def test_a_server_with_a_password(redis_to: Open, valkey: Valkey) -> None:
    valkey.ask("CONFIG", "SET", "requirepass", PASSWORD)
    await ping(redis_to(f"redis://:{QUOTED}@127.0.0.1:{valkey.port}/1"))
    wrong = "refuses the user 'default' with this password", "wants a user name or a password"
    for url, says in zip((f"redis://:canary-wrong@127.0.0.1:{valkey.port}", valkey.url), wrong, strict=True):
        with pytest.raises(QueueUnavailable, match=f"the Redis at 127.0.0.1:{valkey.port} {says}") as caught:
            await ping(redis_to(url))
        assert "canary" not in str(caught.value)


@pytest.mark.process
async def test_a_server_behind_a_socket_file(redis_to: Open) -> None:
    with tempfile.TemporaryDirectory() as folder:  # tmp_path can be too long a name for a socket
        file = Path(folder) / "redis.sock"
        server = Valkey(Path(folder), "--unixsocket", str(file)).start()
        try:
            client = redis_to(f"unix://{file}?db=1")
            await ask(client, "SET", "here", "yes")
            assert b"yes" in server.ask("EVAL", "redis.call('SELECT', 1) return redis.call('GET', 'here')", "0")
        finally:
            server.close()


async def test_a_server_that_is_not_there(redis_to: Open) -> None:
    with pytest.raises(QueueUnavailable, match=r"asking: the Redis at .* cannot be reached"):
        await ping(redis_to(f"redis://u:canary@127.0.0.1:{closed_port()}"))


@pytest.mark.process
async def test_an_error_is_the_first_of_a_pipeline_and_quotes_nothing(
    redis_to: Open, redis_url: str, prefix: str
) -> None:
    client = redis_to(redis_url)
    with pytest.raises(QueueUnavailable, match=r"trying: the Redis at .* ResponseError: WRONGTYPE") as caught:
        async with map_errors(client, "trying"):
            await pipelined(client, [("SET", prefix, "canary"), ("LPUSH", prefix, "canary"), ("NONSENSE", "canary")])
    assert "canary" not in str(caught.value)
    with pytest.raises(QueueUnavailable, match="unknown command") as caught:
        await ask(client, "NONSENSE", "canary")
    assert "canary" not in str(caught.value)


@pytest.mark.process
async def test_whoever_is_cancelled_ends(redis_to: Open, redis_url: str, prefix: str) -> None:
    """asyncio.wait_for, which the client library uses, forgets a cancellation that comes when it has just ended."""
    client = redis_to(redis_url)

    async def work() -> None:
        while True:
            async with map_errors(client, "working"):
                await pipelined(client, [("INCR", prefix)])

    for turns in range(60):
        working = asyncio.get_running_loop().create_task(work())
        for _ in range(turns):
            await asyncio.sleep(0)
        working.cancel()
        done, _ = await asyncio.wait([working], timeout=5)
        assert done
        assert working.cancelled()


@pytest.mark.process
async def test_a_cancelled_task_can_still_say_goodbye(redis_to: Open, redis_url: str, prefix: str) -> None:
    client = redis_to(redis_url)

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            for _ in range(3):
                await ask(client, "INCR", prefix)

    working = asyncio.get_running_loop().create_task(work())
    await asyncio.sleep(0)
    working.cancel()
    await asyncio.wait([working])
    assert await ask(client, "GET", prefix) == b"3"


# -- TLS -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def tls(authority: Authority, shared_valkey: Valkey) -> Iterator[FaultyPath]:
    """TLS in front of the shared server, whose certificate is for localhost by name."""
    context = authority.server_context(authority.issue("server", address=False))
    with FaultyPath("127.0.0.1", shared_valkey.port, tls=context) as path:
        yield path


async def test_a_server_behind_tls_is_believed_only_with_its_certificate_and_name(
    redis_to: Open, tls: FaultyPath, authority: Authority
) -> None:
    await ping(redis_to(f"rediss://localhost:{tls.port}?ssl_ca_certs={authority.file}"))
    with pytest.raises(QueueUnavailable, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
        await ping(redis_to(f"rediss://localhost:{tls.port}"))
    with pytest.raises(QueueUnavailable, match=r"match|mismatch"):
        await ping(redis_to(f"rediss://127.0.0.1:{tls.port}?ssl_ca_certs={authority.file}"))
    await ping(redis_to(f"rediss://127.0.0.1:{tls.port}?ssl_ca_certs={authority.file}&ssl_check_hostname=false"))


# -- several servers -----------------------------------------------------------------------------------------------


class Watched:
    """A primary and its replica with a sentinel; clients and sentinel reach the primary through `path`."""

    def __init__(self, folder: Path) -> None:
        self.primary, self.replica = Valkey(folder / "primary"), Valkey(folder / "replica")
        self.sentinel = Valkey(folder / "sentinel", sentinel=True)
        self.path = FaultyPath("127.0.0.1", self.primary.port)
        self.servers = self.primary, self.replica, self.sentinel

    def start(self) -> None:
        self.path.__enter__()
        self.primary.start()
        self.replica.start()
        self.replica.ask("REPLICAOF", "127.0.0.1", str(self.primary.port))
        self.replica.until("master_link_status:up", "INFO", "replication")
        self.sentinel.folder.mkdir(parents=True)
        (self.sentinel.folder / "valkey.conf").write_text(
            f"sentinel monitor main 127.0.0.1 {self.path.port} 1\n"
            "sentinel down-after-milliseconds main 300\n"
            "sentinel failover-timeout main 1000\n"
        )
        self.sentinel.start()
        self.sentinel.until(str(self.replica.port), "SENTINEL", "REPLICAS", "main")

    @property
    def url(self) -> str:
        """The first of two sentinels is away."""
        return f"redis+sentinel://127.0.0.1:{closed_port()},127.0.0.1:{self.sentinel.port}/main"

    def fail_over(self) -> None:
        """The primary dies; return when there is another."""
        self.primary.kill()
        self.sentinel.until(str(self.replica.port), "SENTINEL", "GET-PRIMARY-ADDR-BY-NAME", "main")
        self.replica.until("role:master", "INFO", "replication")


class Clustered:
    """A cluster of one primary and one replica; clients reach the primary through `path`."""

    def __init__(self, folder: Path) -> None:
        self.primary, self.replica = Valkey(folder / "primary"), Valkey(folder / "replica")
        self.path = FaultyPath("127.0.0.1", self.primary.port)
        self.servers = self.primary, self.replica

    def start(self) -> None:
        self.path.__enter__()
        buses = free_port(), free_port()
        for server, bus in zip(self.servers, buses, strict=True):
            server.options += ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-port", str(bus))
        self.primary.options += ("--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port", str(self.path.port))
        for server in self.servers:
            server.start()
        self.primary.ask("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        self.replica.ask("CLUSTER", "MEET", "127.0.0.1", str(self.primary.port), str(buses[0]))
        name = self.primary.ask("CLUSTER", "MYID").split(b"\r\n")[1].decode()
        self.replica.until("+OK", "CLUSTER", "REPLICATE", name)
        self.replica.until("master_link_status:up", "INFO", "replication")
        for server in self.servers:
            server.until("cluster_state:ok", "CLUSTER", "INFO")

    @property
    def url(self) -> str:
        """Both are ways in."""
        return f"redis+cluster://127.0.0.1:{self.path.port},127.0.0.1:{self.replica.port}"

    def fail_over(self) -> None:
        """The primary dies; return when there is another."""
        self.primary.kill()
        self.replica.ask("CLUSTER", "FAILOVER", "TAKEOVER")
        self.replica.until("role:master", "INFO", "replication")
        self.replica.until("cluster_state:ok", "CLUSTER", "INFO")


@pytest.fixture(params=[Watched, Clustered])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watched | Clustered]:
    several: Watched | Clustered = request.param(tmp_path)
    try:
        several.start()
        yield several
    finally:
        for server in several.servers:
            server.close()
        several.path.__exit__()


@pytest.mark.process
async def test_several_servers_carry_records_lose_replies_and_fail_over(
    servers: Watched | Clustered, redis_to: Open
) -> None:
    """One test for all, as such servers take seconds to make."""
    client = redis_to(servers.url)
    await check(client)
    assert await ask(client, "INCR", "counter") == 1
    servers.path.lose_reply(to=b"INCR")
    with pytest.raises(QueueUnavailable):
        await ask(client, "INCR", "counter")
    assert await ask(client, "GET", "counter") == b"2", "nothing was sent behind our back"

    queue = RedisQueue(client, consumer="w1", block_ms=100)
    records = [Pending(seq, b"{}") for seq in range(1, 21)]
    await queue.add(records[:10], "node")
    servers.path.lose_reply(to=b"XADD")
    with pytest.raises(QueueUnavailable):
        await queue.add(records[10:15], "node")
    assert await queue.depth() == 15
    taken = await queue.take(12)
    await queue.settled(taken)
    assert await queue.depth() == 3
    [offset] = re.findall(rb"master_repl_offset:(\d+)", servers.primary.ask("INFO", "replication"))
    servers.replica.until(f"slave_repl_offset:{offset.decode()}", "INFO", "replication")
    await asyncio.to_thread(servers.fail_over)
    async with asyncio.timeout(20):
        while True:
            try:
                await queue.add(records[15:], "node")
                break
            except QueueUnavailable:
                await asyncio.sleep(0.05)
    assert await queue.depth() == 8
    assert [one.seq for one in await queue.take(100)] == [13, 14, 15, 16, 17, 18, 19, 20]


# -- what must not carry records -----------------------------------------------------------------------------------


@pytest.mark.process
async def test_a_suitable_server_is_taken(redis_to: Open, redis_url: str) -> None:
    await check(redis_to(redis_url))


async def test_a_server_that_throws_records_away_is_refused(redis_to: Open, valkey: Valkey) -> None:
    valkey.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with pytest.raises(QueueUnsuitable, match="maxmemory-policy allkeys-lru"):
        await check(redis_to(valkey.url))


@pytest.mark.parametrize(
    ("version", "taken"), [("6.0.16", False), ("5.0.14", False), ("", False), ("6.2.0", True), ("8.10.1", True)]
)
@pytest.mark.io
async def test_a_server_that_is_too_old_is_refused(redis_to: Open, version: str, taken: bool) -> None:
    words = f"# Server\r\nredis_version:{version}\r\n# Memory\r\nmaxmemory_policy:noeviction\r\n"
    async with ScriptedRedis({"INFO": b"$%d\r\n%s\r\n" % (len(words), words.encode())}) as server:
        if taken:
            await check(redis_to(server.url))
        else:
            with pytest.raises(QueueUnsuitable, match="or newer is needed"):
                await check(redis_to(server.url))


async def test_a_server_that_cannot_be_asked_is_away(redis_to: Open) -> None:
    with pytest.raises(QueueUnavailable):
        await check(redis_to(f"redis://127.0.0.1:{closed_port()}"))


@pytest.mark.io
async def test_a_connection_that_asyncio_has_lost_is_an_outage_and_our_own_bug_is_none(redis_to: Open) -> None:
    def writelines(transport: Any) -> None:
        """As asyncio's, in Python 3.12, where the connection was lost a moment ago."""
        transport._loop._add_writer(0)

    def ours(transport: Any) -> None:
        transport.nothing()

    class Lost:
        _loop = None
        _write_ready = None

    async with ScriptedRedis({}) as server:
        client = redis_to(server.url)
        with pytest.raises(QueueUnavailable, match="has closed the connection"):
            async with map_errors(client, "writing"):
                writelines(Lost())
        with pytest.raises(AttributeError):
            async with map_errors(client, "writing"):
                ours(Lost())


def test_a_connection_that_uvloop_has_closed_is_an_outage_and_our_own_bug_is_none() -> None:
    """Seen: 500 for a client, in the moment in which a server died."""

    async def lost(error: Exception | None) -> None:
        async with ScriptedRedis({}) as server:
            client = open_redis(server.url)
            _, writer = await asyncio.open_connection(*server.url.removeprefix("redis://").split("/")[0].split(":"))
            writer.transport.abort()
            await asyncio.sleep(0.05)
            try:
                async with map_errors(client, "writing"):
                    if error is not None:
                        raise error
                    writer.transport.writelines([b"PING"])
            finally:
                await client.aclose()

    for error, seen in ((None, QueueUnavailable), (RuntimeError("ours"), RuntimeError)):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, pytest.raises(seen):
            runner.run(lost(error))
