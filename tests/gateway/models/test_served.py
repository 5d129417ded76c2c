"""Lists of models from a whole proxy: its own process, a provider's, a ledger."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from proxy.demo.script import json_script
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import Tokenweir, provider_section

pytestmark = pytest.mark.process
# The scripted provider finds a plan by the model that a request names: a request for a list names none.
LIST = ""


@pytest.fixture
def proxy(tmp_path: Path, provider: ScriptedProvider) -> Iterator[Tokenweir]:
    """All behind `*`."""
    made = Tokenweir(tmp_path, providers={"tera": provider_section(provider.base_url)})
    yield made
    made.close()


def get(proxy: Tokenweir, path: str, key: str, method: str = "GET") -> tuple[int, Any]:
    with closing(HTTPConnection("127.0.0.1", proxy.port, timeout=20)) as connection:
        connection.request(method, path, headers={"Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        body = answer.read()
        assert answer.headers["Server"] == "tokenweir"
        return answer.status, json.loads(body) if body else None


def test_a_list_is_no_exchange_and_is_fetched_once(proxy: Tokenweir, provider: ScriptedProvider) -> None:
    provider.script(LIST, json_script({"data": [{"id": "weir/one"}, {"id": "two"}, {"id": proxy.PROVIDER_KEY}]}))
    key, narrow = proxy.key(), proxy.key("narrow", "--model", "two", "--model", "electron")
    proxy.start()
    assert provider.log() == [], "nobody has asked: neither the start nor readiness"
    for path in ("/v1/models", "/models", "/v1/models?limit=1"):
        status, document = get(proxy, path, key)
        assert (status, [one["id"] for one in document["data"]]) == (200, ["weir/one", "two"])
    assert get(proxy, "/v1/models", key, "HEAD") == (200, None)
    assert [one["id"] for one in get(proxy, "/v1/models", narrow)[1]["data"]] == ["two", "electron"]
    assert get(proxy, "/v1/models/weir%2Fone", key)[1]["owned_by"] == "tera"
    assert get(proxy, "/v1/models/weir/one", narrow)[0] == get(proxy, "/v1/models/three", key)[0] == 404
    assert get(proxy, "/v1/models", "tw-none")[0] == 401
    assert get(proxy, "/v1/models", key, "POST")[0] == 405
    (seen,) = provider.log()
    sent = {name.lower(): value for name, value in seen["headers"]}
    assert (seen["method"], seen["path"]) == ("GET", "/v1/models")
    assert sent["authorization"] == f"Bearer {proxy.PROVIDER_KEY}"
    assert key not in str(seen)
    assert proxy.stop() == 0
    assert proxy.read_ledger() == []
    assert proxy.PROVIDER_KEY.encode() not in proxy.log.read_bytes()
