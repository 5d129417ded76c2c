"""A list is fetched from its address, by TLS or from this machine, and nothing else is taken for one."""

from __future__ import annotations

import gzip
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from proxy.billing.pricing.book import PriceBook
from proxy.gateway.upstream.client import UpstreamClient
from proxy.runtime.machine import price_check
from proxy.runtime.machine.price_check import newest
from proxy.runtime.machine.price_file import PriceFileError, book_from
from proxy.settings import Settings, SettingsError, parse
from tests.support.price_lists import listed, price_list

pytestmark = pytest.mark.io

CONFIG = """
providers: {{lister: {{base_url: "https://lister/v1"}}}}
models: {{"*": {{provider: lister}}}}
prices: {{refresh: {{from: "{0}"}}}}
"""
LIST = price_list(listed("plain", {"input_mtok": 2}))
BEFORE = book_from(price_list(listed("plain", {"input_mtok": 1})), "before")


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A server that answers every request with these bytes, and then closes; gives its URL."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                while self.rfile.readline().strip():
                    pass
                self.wfile.write(answer)
                if not answer:
                    self.rfile.read()  # until the client gives up

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/data.json"
        finally:
            server.shutdown()


def settings(url: str) -> Settings:
    return parse(CONFIG.format(url), env={}, folder=Path())


def head(length: int, status: str = "200 OK", more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{more}\r\n".encode()


async def check(answer: bytes) -> PriceBook:
    client = UpstreamClient()
    with answering(answer) as url:
        with_url = settings(url)
        assert with_url.prices.refresh is not None
        try:
            return (await newest(client, with_url.prices.refresh, with_url, BEFORE)).book
        finally:
            await client.close()


async def test_a_list_is_fetched() -> None:
    book = await check(head(len(LIST)) + LIST)
    assert book.providers == book_from(LIST, "").providers


BOMB = gzip.compress(b" " * (1 << 24))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (head(0, "302 Found", "Location: https://elsewhere/\r\n"), "answers 302, a redirect: set the address"),
        (head(0, "304 Not Modified"), "answers 304"),
        (head(0, "404 Not Found"), "answers 404"),
        (head(0, "500 Error"), "answers 500"),
        (head(len(BOMB), more="Content-Encoding: gzip\r\n") + BOMB, "is compressed"),
        (head(2 << 20) + LIST, "data.json: "),
        (head(2000) + b" " * 2000, "is longer than"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"3e8\r\n" + b" " * 1000 + b"\r\n" * 1,
            "data.json: ",
        ),
        (head(6) + b"<html>", "is no price book"),
        (b"", "does not answer within 0.5 s"),
        (b"SSH-2.0-OpenSSH\r\n", "data.json: "),
    ],
)
async def test_what_is_no_list_is_refused(answer: bytes, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(price_check, "BYTES_MAX", 1_500)
    monkeypatch.setattr(price_check, "FETCH_S_MAX", 0.5 if answer == b"" else 20.0)
    with pytest.raises(PriceFileError) as refused:
        await check(answer)
    assert says in str(refused.value)


async def test_nobody_listens_there() -> None:
    with answering(b"") as url:
        pass
    client, with_url = UpstreamClient(), settings(url)
    assert with_url.prices.refresh is not None
    with pytest.raises(PriceFileError, match=r"data\.json: not connected"):
        await newest(client, with_url.prices.refresh, with_url, BEFORE)
    await client.close()


@pytest.mark.parametrize(
    ("refresh", "says"),
    [
        ('{from: "http://example.com/x"}', "from: must be https://, or http:// to this machine"),
        ('{from: "file:///etc/passwd"}', "from: must be a URL"),
        ('{from: "https://user:pw@example.com/"}', "from: must not contain a user name"),
        ("{every: 1s}", "every: must be a minute or longer"),
        ("{every: none}", "every: must be a minute or longer"),
        ("{every: soon}", "every: not a duration"),
        ("{rate_unpriced: perhaps}", "rate_unpriced: must be true or false"),
        ('{from: "http://127.0.0.1/x", tls: {ca_file: x.pem}}', "tls: needs a `from` of https://"),
        ("{tls: {key_file: x.pem}}", "tls.cert_file: is missing"),
        ("{url: x}", "url: unknown field"),
        ("yes", "must be a mapping of fields"),
    ],
)
def test_wrong_settings_are_named(refresh: str, says: str) -> None:
    text = CONFIG.format("x").replace('{from: "x"}', refresh)
    with pytest.raises(SettingsError) as wrong:
        parse(text, env={}, folder=Path())
    assert f"prices.refresh{'' if says.startswith('must be a map') else '.'}" in str(wrong.value)
    assert says in str(wrong.value)


def test_the_proxy_of_the_environment_is_used_as_for_providers() -> None:
    env = {"HTTPS_PROXY": "http://proxy:3128"}
    plain = "providers: {x: {base_url: 'https://x/v1'}}\nmodels: {'*': {provider: x}}\nprices: {refresh: {}}\n"
    refresh = parse(plain, env=env, folder=Path()).prices.refresh
    assert refresh is not None
    assert refresh.proxy is not None
    assert refresh.proxy.host == "proxy"
    assert parse(plain.replace("{}", "{proxy: none}"), env=env, folder=Path()).prices.refresh.proxy is None  # type: ignore[union-attr]
    assert parse(plain.replace("prices: {refresh: {}}\n", ""), env=env, folder=Path()).prices.refresh is None
