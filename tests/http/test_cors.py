"""Pages of other origins: what the proxy answers, and what a real browser makes of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiohttp.test_utils import make_mocked_request

from proxy.http.cors import Cors
from tests.gateway.inprocess import gateway
from tests.support.http_server import answering
from tests.support.net import Response, ask, chat_request, connect
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir, provider_section

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHAT = "/v1/chat/completions"
HERE, ELSEWHERE = "https://app.example", "https://evil.example"
ASKS = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-stainless-os"}


@pytest.fixture
async def url(tmp_path: Path, provider: ScriptedProvider) -> AsyncIterator[str]:
    async with gateway(tmp_path, provider.base_url, cors=Cors([HERE])) as made:
        yield made.url


async def asked(url: str, head: str, **headers: str) -> Response:
    lines = [f"{head} HTTP/1.1", "Host: test", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    async with await connect(url) as client:
        await client.send("\r\n".join(lines).encode())
        return await client.read()


async def test_a_preflight_request_needs_no_key(url: str) -> None:
    response = await asked(url, f"OPTIONS {CHAT}", Origin=HERE, **ASKS)
    assert (response.status, response.body) == (204, b"")
    assert response.header("Access-Control-Allow-Origin") == HERE
    assert response.header("Access-Control-Allow-Methods") == "POST"
    assert response.header("Access-Control-Allow-Headers") == ASKS["Access-Control-Request-Headers"]
    assert response.header("Access-Control-Allow-Credentials") is None
    assert response.header("Vary") == "Origin"


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [("https://bank.example", True), ("https://BANK.example", True), ("https://ban\N{KELVIN SIGN}.example", False),
     ("https://bank.example\N{NO-BREAK SPACE}", False)],
)  # fmt: skip
def test_an_origin_is_ascii(origin: str, allowed: bool) -> None:
    request = make_mocked_request("GET", CHAT, headers={"Origin": origin})
    assert Cors(["https://bank.example"]).allows(request) is allowed


async def test_a_preflight_request_of_another_origin_is_refused(url: str) -> None:
    response = await asked(url, f"OPTIONS {CHAT}", Origin=ELSEWHERE, **ASKS)
    assert (response.status, json.loads(response.body)["error"]["param"]) == (403, "Origin")
    assert response.header("Access-Control-Allow-Origin") is None


@pytest.mark.parametrize("names", ["a\tb", "x" * 65, ",".join(["a"] * 65), "a b", '"a"'])
async def test_strange_names_of_headers_are_not_repeated(url: str, names: str) -> None:
    response = await asked(url, f"OPTIONS {CHAT}", Origin=HERE, **(ASKS | {"Access-Control-Request-Headers": names}))
    assert (response.status, response.header("Access-Control-Allow-Headers")) == (204, None)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("origin", "allowed"), [(HERE, HERE), (ELSEWHERE, None)])
async def test_an_answer_says_which_page_may_read_it(url: str, stream: bool, origin: str, allowed: str | None) -> None:
    async with await connect(url) as client:
        for headers in ({"Origin": origin}, {}):
            await client.send(chat_request(ask("electron", stream=stream), headers=headers))
            response = await client.read()
            assert response.status == 200
            assert response.header("Access-Control-Allow-Origin") == (allowed if headers else None)
            assert response.header("Vary") == ("Origin" if headers else None)
            assert response.header("Access-Control-Expose-Headers") == ("*" if headers and allowed else None)


@pytest.mark.parametrize("head", ["GET /v1/nothing", "OPTIONS /v1/nothing", f"POST {CHAT}"])
async def test_a_page_can_read_why_it_is_refused(url: str, head: str) -> None:
    response = await asked(url, head, Origin=HERE, **{"Content-Length": "0"} if "POST" in head else {})
    assert response.status in {400, 404}
    assert response.header("Access-Control-Allow-Origin") == HERE


async def test_an_unreadable_request_head_has_no_such_headers(url: str) -> None:
    assert (await asked(url, "GET /\x00", Origin=HERE)).header("Access-Control-Allow-Origin") is None


async def test_without_the_setting_nothing_is_said(tmp_path: Path, provider: ScriptedProvider) -> None:
    async with gateway(tmp_path, provider.base_url) as made:
        response = await asked(made.url, f"OPTIONS {CHAT}", Origin=HERE, **ASKS)
        assert (response.status, response.header("Access-Control-Allow-Origin")) == (405, None)


async def test_any_origin(tmp_path: Path, provider: ScriptedProvider) -> None:
    async with gateway(tmp_path, provider.base_url, cors=Cors(["*"])) as made:
        response = await asked(made.url, f"OPTIONS {CHAT}", Origin=ELSEWHERE, **ASKS)
        assert (response.status, response.header("Access-Control-Allow-Origin")) == (204, "*")
        assert response.header("Vary") is None


# -- a browser ---------------------------------------------------------------------------------------------------

STREAM = """async ([url, key]) => {
  try {
    const response = await fetch(url + "/v1/chat/completions", {
      method: "POST",
      headers: {Authorization: `Bearer ${key}`, "Content-Type": "application/json", "X-Stainless-OS": "Browser"},
      body: JSON.stringify({model: "electron", stream: true, messages: [{role: "user", content: "x"}]}),
    });
    return [response.status, response.headers.get("x-tokenweir-exchange"), await response.text()];
  } catch (error) {
    return String(error);
  }
}"""


@pytest.fixture
def pages() -> Iterator[str]:
    """The origin of a page that says nothing."""
    with answering(lambda *_: (200, b"{}")) as url:
        yield url


@pytest.mark.parametrize("is_listed", [True, False])
def test_an_application_in_a_browser(
    browser: Browser, pages: str, tmp_path: Path, provider: ScriptedProvider, is_listed: bool
) -> None:
    origins = [pages if is_listed else HERE]
    served = Tokenweir(
        tmp_path, providers={"p": provider_section(provider.base_url)}, cors={"origins": origins}
    ).start()
    try:
        tab = browser.new_page()
        tab.goto(pages)
        came = tab.evaluate(STREAM, [served.base_url.removesuffix("/v1"), served.key()])
        if not is_listed:
            assert came == "TypeError: Failed to fetch"
            return
        status, exchange, body = came
        assert (status, body.endswith("data: [DONE]\n\n")) == (200, True)
        (entry,) = served.entries(1)
        assert entry["exchange_id"] == exchange
    finally:
        served.close()
