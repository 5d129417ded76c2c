"""Every panel of every dashboard asks a question that has an answer: of a real Prometheus that scrapes real processes
by the shipped configuration and rules, and of the Postgres that they write to."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import combinations
from math import isnan
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from grafana.boards import BOARDS, FOLDER, written
from grafana.panels import POSTGRES, PROMETHEUS, WIDTH
from proxy.cli import COMMANDS
from proxy.demo.script import Send, Shape, Stall
from proxy.demo.shapes import sse
from tests.crash.stage import quick_key
from tests.monitoring.files import RULES
from tests.support.net import ask, chat_request, connect, free_port, post_chat
from tests.support.postgres import Server
from tests.support.prometheus import Prometheus
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import COST, PRICE, Listening, Tokenweir, provider_section
from tests.support.valkey import Valkey

ROOT = Path(__file__).parents[2]
SCRAPE_S = 1
CONTENT = sse({"id": "c1", "choices": [{"index": 0, "delta": {"content": "yes"}, "finish_reason": None}]})
MODELS = ("tera", "silent", "drained")
# What nothing here makes: no record is bad, no provider fails for good. An answer that there is none is one.
ZEROES = {"Firing alerts", "Dead letters", "Reconciliation differences"}
PANELS = [(board.uid, panel) for board in BOARDS for panel in board.json()["panels"]]
VARIABLES = [(board.uid, variable) for board in BOARDS for variable in board.json()["templating"]["list"]]


@dataclass(frozen=True, slots=True)
class Sources:
    """Where dashboards read from, after traffic."""

    prometheus: Prometheus
    ledger_url: str

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Of the ledger, read as a role that writes nothing."""
        with psycopg.connect(self.ledger_url, options="-c default_transaction_read_only=on") as connection:
            return connection.execute(as_grafana_sends_sql(sql).encode()).fetchall()

    def samples(self, expr: str) -> list[float]:
        """The values of the last minute that are numbers."""
        now = time.time()
        expr = re.sub(r"\$(provider|model)\b", ".*", expr.replace("$__rate_interval", "60s"))
        answer = self.prometheus.get("query_range", query=expr, start=f"{now - 60}", end=f"{now}", step="1")
        return [float(value) for one in answer["result"] for _, value in one["values"] if not isnan(float(value))]


def as_grafana_sends_sql(sql: str) -> str:
    """With its macros and variables filled in: everything, yesterday to tomorrow."""
    day = timedelta(days=1)
    start, end = (f"'{at.isoformat()}'" for at in (datetime.now(UTC) - day, datetime.now(UTC) + day))
    sql = re.sub(r"\$__timeFilter\(([\w.]+)\)", rf"\1 BETWEEN {start} AND {end}", sql)
    sql = sql.replace("$__timeFrom()", start).replace("$__timeTo()", end)
    return re.sub(r"\$(key|model)\b", "%", sql)


@pytest.fixture(scope="module")
def sources(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest, provider_process: ScriptedProvider
) -> Iterator[Sources]:
    """Two waves of traffic with a scrape after each: rates need that."""
    folder = tmp_path_factory.mktemp("dashboards")
    ports = free_port(), free_port()
    provider_process.reset()
    with ExitStack() as running:
        # First of all: it waits for five seconds before it scrapes anything.
        prometheus = running.enter_context(closing(Prometheus(folder, prometheus_config(folder, *ports), free_port())))
        postgres: Server = request.getfixturevalue("postgres")
        database = postgres.new_database(request.getfixturevalue("migrated"))
        running.callback(postgres.drop_database, database)
        valkey = running.enter_context(closing(Valkey(folder / "valkey").start()))
        tokenweir = running.enter_context(
            closing(deployment(folder / "proxy", provider_process, postgres.url(database), valkey.url, *ports))
        )
        worker = running.enter_context(closing(tokenweir.worker()))
        key = quick_key(tokenweir)
        with ThreadPoolExecutor() as both:
            list(both.map(Listening.start, (tokenweir, worker)))
        count = 0
        for _ in range(2):
            count += asyncio.run(_wave(tokenweir, key, provider_process))
            tokenweir.entries(count, timeout_s=20)
            _scraped(prometheus, count)
        prometheus.until(_recorded, "every recording rule has a number")
        yield Sources(prometheus, postgres.url(database))


def deployment(
    folder: Path, provider: ScriptedProvider, ledger_url: str, queue_url: str, port: int, worker_port: int
) -> Tokenweir:
    """A proxy in front of one provider under two policies."""
    priced = {"price": PRICE, "cost": COST}
    return Tokenweir(
        folder,
        providers={
            "scripted": provider_section(provider.base_url, on_client_disconnect="cancel"),
            "draining": provider_section(provider.base_url, on_client_disconnect="drain", drain={"seconds": 0.1}),
        },
        models={
            "tera": {"provider": "scripted", **priced},
            "silent": {"provider": "scripted", **priced},
            "drained": {"provider": "draining", **priced},
            "uncosted": {"provider": "scripted", "price": PRICE},
        },
        ledger_url=ledger_url, queue_url=queue_url, shutdown_grace_s=0,
        listen={"host": "127.0.0.1", "port": port}, worker={"port": worker_port},
    )  # fmt: skip


def prometheus_config(folder: Path, proxy_port: int, worker_port: int) -> Path:
    """The shipped one, for addresses of here and faster."""
    config = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"}
    config["rule_files"] = [str(ROOT / "deploy" / "prometheus" / Path(one).name) for one in config["rule_files"]]
    for scraped, port in zip(config["scrape_configs"], (proxy_port, worker_port), strict=True):
        scraped.pop("dns_sd_configs", None)
        scraped["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    return file


async def _wave(tokenweir: Tokenweir, key: str, provider: ScriptedProvider) -> int:
    """Exchanges that are served, estimated, left, drained, of unknown cost, and a refusal; how many it was."""
    provider.script("silent", Shape("electron", reports_usage=False))
    provider.script("uncosted", Shape("electron"))
    provider.script("drained", (Send(CONTENT), Stall()))
    for model in ("tera", "tera", "silent", "uncosted"):
        await post_chat(tokenweir.url, ask(model), key=key)
    async with await connect(tokenweir.url) as client:
        await client.send(chat_request(ask("drained"), key=key))
        await client.read_body(await client.read_head(), until=CONTENT)
    await post_chat(tokenweir.url, ask("tera"), key="tw-nobody")
    return 5


def _scraped(prometheus: Prometheus, count: int) -> None:
    """Return when proxy and worker have been scraped after so many exchanges had been settled, and twice at all."""

    def so_many(it: Prometheus) -> bool:
        asked = f"sum(tokenweir_exchanges_total) == {count} and sum(tokenweir_ledger_entries_total) == {count}"
        return bool(it.get("query", query=f"({asked}) and count(count_over_time(up[1m]) >= 2) == 2")["result"])

    prometheus.until(so_many, f"{count} exchanges in the last scrape")


def _recorded(prometheus: Prometheus) -> bool:
    """NaN is no number, and not equal to itself."""
    names = [rule["record"] for rule in RULES if "record" in rule]
    return all(prometheus.get("query", query=f"{name} == {name}")["result"] for name in names)


@pytest.mark.external
def test_every_panel_has_an_answer(sources: Sources) -> None:
    """All in one test: each is a few milliseconds, and what is wrong is said of all of them."""
    wrong: dict[str, str] = {}
    for uid, panel in PANELS:
        for target in panel["targets"]:
            name = f"{uid}: {panel['title']}: {target['refId']}"
            try:
                answer = sources.rows(target["rawSql"]) if "rawSql" in target else sources.samples(target["expr"])
            except (OSError, psycopg.Error) as error:
                wrong[name] = str(error)
                continue
            if not answer or ("rawSql" in target and all(value is None for row in answer for value in row)):
                wrong[name] = "is empty"
            elif panel["title"] in ZEROES and answer[-1] != 0:
                wrong[name] = f"is not 0: {answer[-1]}"
    assert wrong == {}


@pytest.mark.external
def test_every_choice_has_values(sources: Sources) -> None:
    for uid, variable in VARIABLES:
        if variable["type"] == "textbox":
            continue
        if variable["datasource"] == POSTGRES:
            assert sources.rows(variable["query"]), f"{uid}: {variable['name']}"
            continue
        series, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]).groups()  # type: ignore[union-attr]
        found = sources.prometheus.get(f"label/{label}/values", **{"match[]": series.replace("$provider", ".*")})
        assert found, f"{uid}: {variable['name']}"


@pytest.mark.external
def test_money_on_the_dashboard_is_the_ledgers(sources: Sources) -> None:
    """Sums by key, by model, by day and of all are the same, and are what entries say."""
    (charged,) = sources.rows("SELECT sum(charge_usd) FROM ledger_entries")[0]
    panels = {panel["title"]: panel["targets"][0]["rawSql"] for uid, panel in PANELS if uid == "tokenweir-money"}
    assert sources.rows(panels["Totals"])[0][0] == charged > 0
    for title, column in (("By key", 3), ("By model", 1), ("By project", 1), ("Charge per day, by key", 2)):
        assert sum(row[column] for row in sources.rows(panels[title])) == charged, title
    # An unknown cost is not 0.
    sums = "SELECT sum(charge_usd), coalesce(sum(cost_usd), 0) FROM ledger_entries WHERE cost_usd IS"
    ((earned, cost),), ((unknown, _),) = (sources.rows(f"{sums} {known}") for known in ("NOT NULL", "NULL"))
    margin = earned - cost
    shown = sources.rows(panels["Totals"])[0][1:]
    assert shown == (cost, margin, pytest.approx(margin / earned), unknown)
    assert unknown > 0
    for title, column in (("By key", 5), ("By model", 3), ("By project", 3), ("Charge, cost and margin per day", 3)):
        assert sum(row[column] for row in sources.rows(panels[title])) == margin > 0, title
    ((share,),) = sources.rows(panels["Estimated share of charges"])
    assert 0 < share < 1


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_the_files_are_what_the_code_makes_and_panels_do_not_overlap(board: Any) -> None:
    made = board.json()
    assert (FOLDER / f"{board.uid}.json").read_text() == written()[f"{board.uid}.json"], "run: python -m grafana"
    panels = made["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] + place["w"] <= WIDTH for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below
    assert all(panel["description"].endswith(".") for panel in panels)


def _links() -> Iterator[tuple[str, str]]:
    """Title of a panel → a page of the console that it links to."""
    for _, panel in PANELS:
        columns = (one for override in panel["fieldConfig"]["overrides"] for one in override["properties"])
        of_columns = (link for one in columns if one["id"] == "links" for link in one["value"])
        for link in (*panel["links"], *of_columns):
            address, page = link["url"].split("/#/")
            assert address == "${console}"
            yield panel["title"], page


def test_links_lead_to_pages_of_the_console_with_parameters_that_it_knows() -> None:
    folder = ROOT / "proxy" / "console" / "page"
    pages = re.search(r"const PAGES = \{(.*)\};", (folder / "app.js").read_text())[1]  # type: ignore[index]
    found = list(_links())
    assert len(found) > 8
    for title, page in found:
        path, _, query = page.partition("?")
        name = path.split("/")[0]
        assert re.search(rf"\b{name}\b", pages), title
        for parameter in filter(None, query.split("&")):
            assert parameter.split("=")[0] in (folder / f"{name}.js").read_text(), title


def test_panels_name_commands_that_exist() -> None:
    texts = " ".join(panel["description"] for _, panel in PANELS)
    named = [one.split() for one in re.findall(r"`tokenweir ([^`]+)`", texts)]
    assert ["exchange"] in named
    assert [words for words in named if words[0] not in COMMANDS or any(one.startswith("-") for one in words)] == []


def test_what_is_provisioned_is_what_dashboards_ask() -> None:
    provisioning = ROOT / "grafana" / "provisioning"
    sources = yaml.safe_load((provisioning / "datasources" / "tokenweir.yaml").read_text())["datasources"]
    assert [{"type": one["type"], "uid": one["uid"]} for one in sources] == [PROMETHEUS, POSTGRES]
    assert sources[1]["secureJsonData"]["password"].startswith("$"), "no password stands in a file"
    (folder,) = yaml.safe_load((provisioning / "dashboards" / "tokenweir.yaml").read_text())["providers"]
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    assert f"../grafana/dashboards:{folder['options']['path']}:ro" in compose["grafana"]["volumes"]
    assert sources[0]["url"] == "http://prometheus:9090"
    assert sources[1]["url"] == "postgres:5432"
    assert {"prometheus", "postgres"} <= set(compose)
    for file in FOLDER.glob("*.json"):
        assert json.loads(file.read_text())["uid"] in {board.uid for board in BOARDS}, "no file is left over"
