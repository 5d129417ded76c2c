"""`tokenweir doctor` where a provider is behind a private CA, wants a client certificate, or is reached by a proxy."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.doctor import providers
from proxy.doctor.finding import CheckedDeployment, Finding, Severity
from proxy.settings import parse
from tests.support.certificates import Authority
from tests.support.connect_proxy import Behaviour, ConnectProxy, connect_proxy
from tests.support.net import listening

pytestmark = pytest.mark.io

SECRET, PASSWORD = "sk-canary-of-the-doctor-71c3", "canary-password"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@dataclass
class Place:
    """A provider that wants a client certificate, and a proxy, in an event loop of their own."""

    authority: Authority
    port: int = 0
    proxy: ConnectProxy = field(default_factory=ConnectProxy)
    ready: threading.Event = field(default_factory=threading.Event)

    async def run(self) -> None:
        self.over = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        context = self.authority.server_context(self.authority.issue("server"), clients=True)
        async with AsyncExitStack() as stack:
            url = await stack.enter_async_context(listening(self._answer, ssl=context))
            self.port = int(url.rpartition(":")[2])
            self.proxy = await stack.enter_async_context(connect_proxy(credentials=f"user:{PASSWORD}"))
            self.ready.set()
            await self.over.wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER.replace(b"200 OK", b"401 No") if b"Bearer sk-revoked" in head else ANSWER)
        writer.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(Authority(tmp_path_factory.mktemp("pki")))
    thread = threading.Thread(target=lambda: asyncio.run(made.run()))
    thread.start()
    assert made.ready.wait(20)
    yield made
    made.loop.call_soon_threadsafe(made.over.set)
    thread.join()


def examined(place: Place, more: dict[str, Any]) -> list[Finding]:
    section = {"base_url": f"https://127.0.0.1:{place.port}/v1", "api_key": "${KEY}", **more}
    document = {"providers": {"p": section}, "models": {"*": {"provider": "p"}}}
    env = {"KEY": SECRET, "PASSWORD": PASSWORD, "REVOKED": "sk-revoked"}
    found = providers.check(
        "p", CheckedDeployment(parse(yaml.safe_dump(document), env=env, folder=Path()), time.time())
    )
    assert not [word for word in (SECRET, PASSWORD) if word in repr(found)]
    return found


def files(place: Place, name: str = "client", **options: Any) -> dict[str, str]:
    issued = place.authority.issue(name, **options)
    return {"ca_file": str(place.authority.file), "cert_file": str(issued.cert), "key_file": str(issued.key)}


@pytest.mark.io
def test_all_is_well(place: Place) -> None:
    url = f"http://user:${{PASSWORD}}@127.0.0.1:{place.proxy.port}"
    found = examined(place, {"tls": files(place, days=(-1, 30)), "proxy": url})
    through = f"through the proxy 127.0.0.1:{place.proxy.port}"
    assert found[0].message == f"it is reachable {through} (200 for its list of models)"
    assert found[2].message.startswith("providers.p.tls.cert_file: the certificate is valid until 20")
    assert [one.severity for one in found if "cert_file" in one.message] == [Severity.OK]
    assert place.proxy.targets[-1] == f"127.0.0.1:{place.port}"


@pytest.mark.parametrize(
    ("days", "says", "severity"),
    [
        ((-9, -1), "the certificate expired at", Severity.ERROR),
        ((1, 30), "the certificate is valid only from", Severity.ERROR),
        ((-1, 3), "the certificate expires at", Severity.WARNING),
    ],
)
def test_a_certificate_out_of_its_time(place: Place, days: tuple[float, float], says: str, severity: Severity) -> None:
    found = examined(place, {"tls": files(place, "late", days=days)})
    assert [one.severity for one in found if f"providers.p.tls.cert_file: {says}" in one.message] == [severity]


def test_files_that_serve_would_not_start_with(place: Place) -> None:
    named = files(place)
    for more, says in (
        ({"ca_file": "/nowhere/ca.pem"}, "ca_file: cannot be read: No such file or directory"),
        ({"key_file": files(place, "other")["key_file"]}, "key_file: the private key does not belong"),
    ):
        (found,) = examined(place, {"tls": named | more})
        assert found.severity is Severity.ERROR
        assert f"providers.p.tls.{says}" in found.message


def test_an_authority_that_is_not_trusted(place: Place) -> None:
    (found,) = examined(place, {})
    assert "the certificate of 127.0.0.1 is not trusted" in found.message
    assert "providers.p.tls.ca_file" in found.advice


@pytest.mark.parametrize(
    ("behaviour", "says"),
    [("tunnels", "it refuses its credentials (407)"), ("forbids", "it does not allow this host (403)")],
)
def test_a_proxy_that_lets_nothing_through(place: Place, behaviour: Behaviour, says: str) -> None:
    place.proxy.behaviour, place.proxy.credentials = behaviour, None if behaviour == "forbids" else f"user:{PASSWORD}"
    try:
        found = examined(place, {"proxy": f"http://127.0.0.1:{place.proxy.port}"})
    finally:
        place.proxy.behaviour, place.proxy.credentials = "tunnels", f"user:{PASSWORD}"
    assert f"127.0.0.1 cannot be reached: not connected: the proxy: {says}" in found[0].message
    assert "providers.p.proxy" in found[0].advice


def test_each_credential_is_tried(place: Place) -> None:
    listed = [{"name": "good", "api_key": "${KEY}"}, {"name": "bad", "api_key": "${REVOKED}"}]
    found = examined(place, {"tls": files(place), "api_key": None, "credentials": listed})
    told = [one for one in found if "credential" in one.message]
    assert [one.severity for one in told] == [Severity.OK, Severity.ERROR]
    assert told[1].message == "it rejects the key of credential bad (401)"
