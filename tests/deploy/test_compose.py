"""compose.yaml as a whole, in containers: a stream through each proxy and into the ledger, Prometheus, and an alert."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.crash.stage import charge
from tests.deploy.compose import PATIENCE_S, Compose
from tests.deploy.containers import Engine
from tests.support import sse
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.external, pytest.mark.privileged, pytest.mark.timeout(600)]
# Of the built-in price book, in USD per million tokens.
PRICE = {"input": 0.15, "output": 0.6}
PROXIES, WORKERS = ("tokenweir-1", "tokenweir-2"), 2


@pytest.fixture(scope="module")
def compose(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    made = Compose(engine, engine.built(), tmp_path_factory.mktemp("compose"))
    try:
        yield made.start()
    finally:
        made.close()


def got(url: str) -> Any:
    with urlopen(url, timeout=10) as answer:
        return json.load(answer)


def streamed(url: str, key: str) -> bytes:
    body = {"model": "gpt-4o-mini", "stream": True, "messages": [{"role": "user", "content": "x"}]}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urlopen(Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers), timeout=30) as answer:
        return bytes(answer.read())


def ledger(compose: Compose) -> list[dict[str, Any]]:
    return [json.loads(line) for line in compose.inside("tokenweir-1", "ledger", "--json").splitlines()]


def test_a_stream_through_each_proxy_is_in_the_ledger_and_an_alert_reaches_its_manager(compose: Compose) -> None:
    for service in (*PROXIES, "worker"):
        compose.until_healthy(service)
    key = json.loads(compose.inside("tokenweir-1", "keys", "create", "--alias", "alice"))["key"]
    for proxy in PROXIES:
        assert sse.done(streamed(compose.urls[f"{proxy}:8080"], key))
    entries = wait_until(lambda: found if len(found := ledger(compose)) == len(PROXIES) else None, within_s=PATIENCE_S)
    assert entries is not None
    assert {(one["outcome"], one["usage_source"]) for one in entries} == {("served", "reported")}
    assert [Decimal(one["charge_usd"]) for one in entries] == [charge(one, PRICE) for one in entries]
    assert urlopen(compose.urls["tokenweir-2:8090"], timeout=10).status == 200
    _scraped(compose)
    _alerted(compose)


def _scraped(compose: Compose) -> None:
    """Prometheus finds all proxies and workers, and counts what they relayed."""
    query = f"{compose.urls['prometheus:9090']}/api/v1/query?query="

    def up() -> bool:
        found = [one["metric"]["job"] for one in got(f"{query}up==1")["data"]["result"]]
        return sorted(found) == ["tokenweir"] * len(PROXIES) + ["tokenweir-worker"] * WORKERS

    wait_until(up, lambda: got(f"{query}up"), within_s=PATIENCE_S, poll_s=0.2)


def _alerted(compose: Compose) -> None:
    """A proxy that is gone is an alert of the shipped rules."""
    compose.engine("kill", compose.container(PROXIES[1]))

    def alerts() -> list[str]:
        return [one["labels"]["alertname"] for one in got(f"{compose.urls['alertmanager:9093']}/api/v2/alerts")]

    wait_until(lambda: "TokenweirDown" in alerts(), alerts, within_s=PATIENCE_S, poll_s=0.2)
