"""The rights of the user in Redis: each one that is listed is needed, and one that lacks is named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import proxy
from proxy.doctor import queue as doctor
from proxy.doctor.finding import CheckedDeployment
from proxy.settings import parse
from proxy.storage.redis_client import QueueUnavailable, check, open_redis, refusal
from proxy.storage.redis_keys import PREFIX, RedisKeys
from proxy.storage.redis_rights import access_list, commands
from tests.support.net import free_port
from tests.support.scripted_redis import ScriptedRedis
from tests.support.valkey import Valkey

ROOT = Path(proxy.__file__).parent
PATTERNS = RedisKeys().patterns()
# Sent by the client library, and by the check itself.
UNWRITTEN = {"ping", "client|setname", "multi", "asking", "cluster|slots", "command"}
CALLED = re.compile(r"""call\(\s*["'](\w+)|"([A-Z]{3,})"|redis\.(?!p?call)(\w+)\(""")
METHODS = {"delete": "del", "xpending_range": "xpending", "hscan_iter": "hscan"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    one = Valkey(tmp_path_factory.mktemp("rights")).start()
    yield one
    one.close()


def allow(server: Valkey, *changes: str, cluster: bool = False) -> str:
    """Give the user `tw` all rights, with these changes. Returns the URL."""
    words = access_list("tw", cluster=cluster).replace(">PASSWORD", ">canary").split()
    for line in (words, ["ACL", "SETUSER", "tw", *changes]):
        assert server.ask(*line) == b"+OK\r\n"
    return server.url.replace("//", "//tw:canary@")


async def lacks(url: str) -> str | None:
    """What is said about the user of this URL."""
    client = open_redis(url)
    try:
        return await refusal(client)
    finally:
        await client.aclose()


def test_what_is_listed_is_what_the_code_calls() -> None:
    """Scripts call commands with the rights of the user."""
    sources = "".join(path.read_text() for path in ROOT.rglob("*.py") if "redis" in str(path.relative_to(ROOT)))
    sources += "".join((ROOT / name).read_text() for name in ("delivery/roster.py", "doctor/queue.py"))
    words = {next(filter(None, found)).lower() for found in CALLED.findall(sources)}
    called = {METHODS.get(word, re.sub(r"^(xgroup|xinfo)_", r"\1|", word)) for word in words}
    assert set(commands()) - UNWRITTEN - called == set(), "nothing needs them"
    others = {word for word in called if re.match(r"[hxz][a-z]{3}", word)} - set(commands())
    assert others == {"xlen"}, "RedisQueue.depth, which no process calls"


def test_names_of_keys_are_made_in_one_module() -> None:
    keys = RedisKeys()
    names = keys.records(3), keys.budgets("x"), keys.roster("proxies"), keys.nodes(), keys.leases("n"), keys.claim("c")
    assert all(sum(name.startswith(pattern.rstrip("*")) for pattern in PATTERNS) == 1 for name in names)
    places = [*(ROOT / "budgets").rglob("*.py"), *(ROOT / "delivery").glob("*.py"), ROOT / "keys/claims_redis.py"]
    assert [path for path in places if re.search(r"\{_?prefix|\{PREFIX|_prefix \+", path.read_text())] == []
    assert PREFIX == "tokenweir", "stored by running deployments"


def test_the_documentation_has_the_access_list() -> None:
    page = (ROOT.parent / "docs/how-to/use-several-machines.md").read_text()
    assert access_list("tokenweir") in page
    more = set(commands(cluster=True)) - set(commands())
    assert " ".join(f"+{name}" for name in sorted(more)) in page


@pytest.mark.process
async def test_all_rights_are_enough_and_nothing_is_written(server: Valkey) -> None:
    url = allow(server)
    server.ask("ACL", "LOG", "RESET")
    assert await lacks(url) is None
    client = open_redis(url)
    await check(client)
    await client.aclose()
    assert server.ask("ACL", "LOG") == b"*0\r\n"
    assert server.ask("DBSIZE") == b":0\r\n"


@pytest.mark.process
async def test_each_command_that_is_taken_away_is_named(server: Valkey) -> None:
    said = {name: await lacks(allow(server, f"-{name}")) for name in commands()}
    assert len(said) > 40
    for name, text in said.items():
        place = f"the Redis at 127.0.0.1:{server.port} does not give its user 'tw'"
        assert text == f"{place} the right to +{name}: ACL SETUSER tw +{name}"


@pytest.mark.process
@pytest.mark.parametrize("left", ["", "%R~", "%W~"])
@pytest.mark.parametrize("gone", PATTERNS)
async def test_each_pattern_that_is_taken_away_is_named(server: Valkey, gone: str, left: str) -> None:
    kept = [f"~{one}" for one in PATTERNS if one != gone]
    url = allow(server, "resetkeys", *kept, *([f"{left}{gone}"] if left else []))
    assert f"the right to ~{gone}: ACL SETUSER tw ~{gone}" in (await lacks(url) or "")
    client = open_redis(url)
    with pytest.raises(QueueUnavailable, match="does not give its user 'tw' the right to ~"):
        await check(client)
    await client.aclose()


@pytest.mark.process
async def test_several_are_named_together_and_a_database_needs_its_own(server: Valkey) -> None:
    assert "the right to +hget +xadd ~tokenweir:*: ACL SETUSER tw +hget +xadd ~tokenweir:*" in (
        await lacks(allow(server, "-hget", "-xadd", "resetkeys", f"~{PATTERNS[1]}", f"~{PATTERNS[2]}")) or ""
    )
    assert "the right to +select: " in (await lacks(f"{allow(server)}/1") or "")
    assert await lacks(f"{allow(server, '+select')}/1") is None
    assert "refuses the user 'tw' with this password" in (
        await lacks(allow(server).replace("canary", "canary-2")) or ""
    )


@pytest.mark.io
async def test_a_server_without_transactions_is_not_checked() -> None:
    async with ScriptedRedis({"MULTI": b"-ERR unknown command 'MULTI'\r\n"}) as server:
        assert await lacks(server.url) is None
        assert server.asked[-1] == [b"MULTI"]


@pytest.mark.process
def test_doctor_names_it(server: Valkey, tmp_path: Path) -> None:
    raw = {"providers": {"p": {"base_url": "http://127.0.0.1:1/v1"}}, "models": {"*": {"provider": "p"}}}
    raw |= {"queue": "${URL}", "ledger": "postgresql://h/d", "key_pepper": "${PEPPER}"}  # type: ignore[dict-item]
    env = {"URL": allow(server), "PEPPER": "5e" * 32}
    case = CheckedDeployment(parse(yaml.safe_dump(raw), env=env, folder=tmp_path), 0.0)
    assert not [found for found in doctor.check(case) if "right" in found.message]
    for right, change in (*((f"+{name}", [f"-{name}"]) for name in commands()), ("~", ["resetkeys"])):
        allow(server, *change)
        (found,) = doctor.check(case)
        assert (found.severity, f"the right to {right}" in found.message) == ("error", True), right
        assert "use-several-machines.md" in found.advice
        assert "canary" not in found.message


@pytest.mark.process
async def test_a_cluster_needs_three_more(tmp_path: Path) -> None:
    server = Valkey(tmp_path, "--cluster-enabled", "yes", "--cluster-port", str(free_port())).start()
    try:
        server.ask("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        server.until("cluster_state:ok", "CLUSTER", "INFO")
        assert await lacks(allow(server, cluster=True).replace("redis:", "redis+cluster:")) is None
        for name in [*sorted(set(commands(cluster=True)) - set(commands())), "evalsha", "client|setname"]:
            url = allow(server, f"-{name}", cluster=True).replace("redis:", "redis+cluster:")
            client = open_redis(url)
            with pytest.raises(QueueUnavailable) as caught:
                await check(client)
            await client.aclose()
            text = str(caught.value)
            assert (
                f"the Redis cluster at 127.0.0.1:{server.port} does not give its user 'tw' the right to +{name}" in text
            )
            assert "canary" not in text
    finally:
        server.close()
