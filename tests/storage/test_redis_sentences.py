"""What an operator reads of a Redis, a sentinel or a cluster that cannot be used: which server, what is wrong, what to
do; and no password."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.storage import redis_client
from proxy.storage.redis_client import QueueUnavailable, check, map_errors, open_redis
from tests.support.certificates import Authority
from tests.support.faulty import FaultyPath
from tests.support.net import closed_port
from tests.support.scripted_redis import ScriptedRedis
from tests.support.valkey import Valkey

DATA, SENTINEL, WATCHER, WRONG = "canary-data", "canary-sentinel", "canary-watcher", "canary-wrong"
OPTIONS = "the URL's options sentinel_username and sentinel_password"


async def said(url: str, word: str = "PING") -> str:
    """What the check at the start says, or, if it finds nothing, a later command; empty: all is well."""
    client = open_redis(url)
    try:
        if word == "PING":
            await check(client)
        async with map_errors(client, "asking"):
            await client.execute_command(word)  # type: ignore[no-untyped-call]
    except QueueUnavailable as failure:
        text = str(failure)
    else:
        return ""
    finally:
        await client.aclose()
    assert not [word for word in ("canary", "object at", "<") if word in text]
    return text


@pytest.mark.io
@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("LOADING Redis is loading the dataset in memory", "is still loading its data: wait for it"),
        ("MISCONF Redis is configured to save RDB snapshots", "cannot write to its disk, and accepts no records"),
        ("OOM command not allowed when used memory > 'maxmemory'.", "has no memory left (maxmemory): add memory"),
        ("READONLY You can't write against a read only replica.", "is a replica, which accepts no records: point"),
        ("MASTERDOWN Link with MASTER is down", "is a replica that has lost its primary: point the URL to"),
        ("DENIED Redis is running in protected mode", "is in protected mode, and accepts connections of"),
        ("MOVED 3999 10.0.0.1:6381", "is a part of a cluster: write redis+cluster:// in the URL"),
        ("ERR max number of clients reached", "has too many clients: raise its maxclients"),
        ("CLUSTERDOWN The cluster is down", "is a cluster without some of its servers: CLUSTERDOWN The"),
        ("NOPERM this user has no permissions to run the 'xlen' command or its subcommand", "the right to +xlen: ACL"),
        ("NOPERM No permissions to access a key", "the right to ~tokenweir:* ~{tokenweir}:* ~{tokenweir:*: ACL"),
        ("ERR ACL failure in script: User u has no permissions to run the 'hget' command script: on @user_script:1.",
         "the right to +hget: ACL SETUSER default +hget"),
        ("ERR unknown command 'XLEN', with args beginning with: 'SSL canary'", "unknown command 'XLEN'"),
        ("WRONGTYPE Operation against a key", "ResponseError: WRONGTYPE Operation against a key"),
    ],
)  # fmt: skip
async def test_an_error_of_a_server_says_what_to_do(error: str, says: str) -> None:
    async with ScriptedRedis({"XLEN": f"-{error}\r\n".encode()}) as server:
        text = await said(server.url, "XLEN")
    assert text.startswith(f"asking: the Redis at {server.url.removeprefix('redis://')}")
    assert says in text


@pytest.mark.process
async def test_a_server_that_cannot_be_used_is_named_at_the_start(
    valkey: Valkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_client, "CONNECT_S", 0.3)
    place, gone = f"127.0.0.1:{valkey.port}", closed_port()
    cases = {
        valkey.url: "",
        f"{valkey.url}/99": f"the Redis at {place} has no database 99: correct its number in the URL",
        f"redis://127.0.0.1:{gone}": f"the Redis at 127.0.0.1:{gone} cannot be reached: check its address, and that",
        f"redis://:{WRONG}@{place}": f"the Redis at {place} has no password: remove it from the URL",
        f"redis://u:{WRONG}@{place}": f"the Redis at {place} refuses the user 'u' with this password: correct both",
        f"rediss://{place}":
            f"the Redis at {place} does not answer in time: check its load and the network, and that this port is for",
        f"redis+cluster://{place}": f"the Redis cluster at {place} is no cluster: write redis:// in the URL",
        f"redis+sentinel://{place}/main": f"the sentinel at {place} is no sentinel: correct the address, or write redis://",
        f"unix://{tmp_path}/none": f"the Redis at {tmp_path}/none cannot be reached",
    }  # fmt: skip
    for url, says in cases.items():
        assert says in await said(url), url
        assert bool(says) == bool(await said(url))
    valkey.ask("REPLICAOF", "127.0.0.1", "1")
    assert f"the Redis at {place} is a replica, which accepts no records: point the URL" in await said(valkey.url)
    valkey.ask("REPLICAOF", "NO", "ONE")
    valkey.ask("CONFIG", "SET", "requirepass", DATA)
    for kind in ("redis://", "redis+cluster://"):
        assert f"at {place} wants a user name or a password: set them in the URL" in await said(f"{kind}{place}")
    assert f"the Redis cluster at {place} refuses the user" in await said(f"redis+cluster://:{WRONG}@{place}")


# -- sentinels -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Valkey, Valkey]]:
    """A primary and its sentinel, each with a password."""
    folder = tmp_path_factory.mktemp("watched")
    primary = Valkey(folder / "primary", "--requirepass", DATA).start()
    sentinel = Valkey(folder / "sentinel", sentinel=True)
    sentinel.folder.mkdir()
    (sentinel.folder / "valkey.conf").write_text(
        f"requirepass {SENTINEL}\n"
        f"user watcher on >{WATCHER} -@all +sentinel|masters +ping\n"
        f"user stranger on >{WATCHER} -@all +ping\n"
        f"sentinel monitor main 127.0.0.1 {primary.port} 1\n"
        f"sentinel auth-pass main {DATA}\n"
    )
    sentinel.start()
    yield primary, sentinel
    sentinel.close()
    primary.close()


@pytest.mark.process
async def test_a_sentinel_with_a_password_of_its_own(watched: tuple[Valkey, Valkey]) -> None:
    primary, sentinel = watched
    place, data = f"127.0.0.1:{sentinel.port}", f"127.0.0.1:{primary.port}"
    first, second = closed_port(), closed_port()

    def url(options: str, *, user: str = f":{DATA}@", hosts: str = place, name: str = "main") -> str:
        return f"redis+sentinel://{user}{hosts}/{name}?{options}"

    right = f"sentinel_password={SENTINEL}"
    cases = {
        url(right): "",
        url(f"sentinel_username=watcher&sentinel_password={WATCHER}"): "",
        url(right, hosts=f"127.0.0.1:{first},{place}"): "",
        url(""): f"the sentinel at {place} wants a user name or a password: set them in {OPTIONS}",
        url(f"sentinel_password={WRONG}"):
            f"the sentinel at {place} refuses the user 'default' with this password: correct both in {OPTIONS}",
        url(f"sentinel_username=nobody&sentinel_password={WRONG}"): f"at {place} refuses the user 'nobody'",
        url(f"sentinel_username=stranger&sentinel_password={WATCHER}"):
            f"the sentinel at {place} does not give its user 'stranger' the right to +sentinel|masters: ACL SETUSER",
        url(right, name="other"): f"the sentinel at {place} watches main, not 'other': correct the name in the URL",
        url(right, hosts=f"127.0.0.1:{first},127.0.0.1:{second}"): f"sentinel at 127.0.0.1:{second} cannot be reached",
        url(right, user=""): f"the Redis at {data} (the primary of 'main') wants a user name or a password: set",
        url(right, user=f":{WRONG}@"): f"the Redis at {data} (the primary of 'main') refuses the user 'default' with",
        url(right, name="main/99"): f"the Redis at {data} (the primary of 'main') has no database 99",
    }  # fmt: skip
    for address, says in cases.items():
        text = await said(address)
        assert says in text, address
        assert bool(says) == bool(text)


@pytest.mark.process
async def test_tls_is_for_sentinels_and_primary(
    watched: tuple[Valkey, Valkey], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    primary, sentinel = watched
    monkeypatch.setattr(redis_client, "CONNECT_S", 0.3)
    authority = Authority(tmp_path)
    context = authority.server_context(authority.issue("server", address=False))
    rest = f"/main?sentinel_password={SENTINEL}&ssl_ca_certs={authority.file}"
    plain = await said(f"rediss+sentinel://:{DATA}@127.0.0.1:{sentinel.port}{rest}")
    assert f"the sentinel at 127.0.0.1:{sentinel.port} does not answer in time" in plain
    assert "that this port is for TLS" in plain
    monkeypatch.setattr(redis_client, "CONNECT_S", 2.0)  # of these two the sentinel answers, on a busy machine too
    with FaultyPath("127.0.0.1", sentinel.port, tls=context) as path:
        text = await said(f"rediss+sentinel://:{DATA}@localhost:{path.port}{rest}")
    assert f"the Redis at 127.0.0.1:{primary.port} (the primary of 'main') does not answer in time" in text
    assert "that this port is for TLS" in text


@pytest.mark.io
async def test_a_plain_connection_to_a_port_for_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = authority.server_context(authority.issue("server"))

    async def never(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        raise AssertionError

    async with await asyncio.start_server(never, "127.0.0.1", 0, ssl=context) as server:
        place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        text = await said(f"redis://{place}")
    assert f"the Redis at {place} has closed the connection; if it always does, the port may be for TLS: write" in text
