"""`statement`, `export` and `sinks`, from the command line to what others get."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from msgspec.structs import replace

from proxy.settings import SettingsError, parse
from proxy.sinks.kinds import SINKS
from proxy.sinks.progress import register
from tests.cli.commands import CONFIG, Commands
from tests.ledger.priced_entries import a_real_entry
from tests.support.net import ask, post_chat
from tests.support.tokenweir import Tokenweir
from tests.support.waiting import until
from tests.support.web_server import serving

LAGO = {"kind": "lago", "url": "http://127.0.0.1:1", "secret": "${LAGO_KEY}"}
TODAY = datetime.now(UTC).date()


@pytest.fixture
def run(run: Commands) -> Commands:
    """A key has used something today."""
    (key,) = run("keys", "create", "--alias", "anna")
    now = datetime.now(UTC).timestamp()
    run.settle(*(a_real_entry(number, key=key["key_id"], started_at=now) for number in range(2)))
    return run


@pytest.mark.io
def test_a_statement(run: Commands, tmp_path: Path) -> None:
    month = f"{TODAY:%Y-%m}"
    run("credit", "add", "--key", "anna", "--usd", "2", "--reason", "invoice")
    (shown,) = run("statement", "--key", "anna", "--month", month, "--format", "json")
    assert (shown["total"]["requests"], shown["credits_usd"], shown["final"]) == (2, "2", False)
    (above,) = run("statement", "--account", "org_default", "--month", month, "--format", "json")
    assert (above["usage_usd"], above["credits_usd"]) == (shown["usage_usd"], "0")
    page = tmp_path / "page.html"
    run("statement", "--key", "anna", "--month", month, "--output", str(page))
    assert page.read_text().startswith("<!doctype html>")
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    run("statement", "--key", "anna", "--month", "2026-13", code=2)
    assert "--month: expected YYYY-MM" in run.err
    run("statement", "--key", "nobody", "--month", month, code=3)
    assert sorted(path.name for path in tmp_path.glob("*page*")) == ["page.html"]


@pytest.mark.io
def test_an_export(run: Commands, tmp_path: Path) -> None:
    file = tmp_path / "all.csv"
    run("export", "--output", str(file), "--key", "anna", "--since", "1d")
    rows = list(csv.DictReader(io.StringIO(file.read_text(), newline="")))
    assert [row["model"] for row in rows] == ["tera-large"] * 2
    assert run.err == ""
    run("export", "--output", str(file), "--until", "2020-01-01", "--format", "focus")
    assert len(file.read_text().splitlines()) == 1
    in_vain = replace(a_real_entry(0), kind="attempt", seq=1, entry_id="attempt-1", charge_nusd=0)
    run.settle(in_vain)
    for shape, count in (("focus", 8), ("csv", 3)):
        run("export", "--output", str(file), "--format", shape)
        assert len(file.read_text().splitlines()) == 1 + count
    run("export", "--output", str(tmp_path / "x.parquet"), code=2)
    assert "ends in .parquet, but --format is csv" in run.err
    assert not (tmp_path / "x.parquet").exists()


@pytest.mark.io
def test_focus_adds_up_to_the_ledger_after_a_correction(run: Commands, tmp_path: Path) -> None:
    exchange = a_real_entry(0).exchange_id
    run("adjust", exchange, "--reason", "goodwill", "--charge-usd", "0.000001", "--completion-tokens", "40")
    run("credit", "add", "--key", "anna", "--usd", "2", "--reason", "invoice")
    file, money = tmp_path / "all.csv", list[Decimal]()
    for shape, column in (("csv", "charge_usd"), ("focus", "BilledCost")):
        run("export", "--output", str(file), "--format", shape)
        rows = list(csv.DictReader(io.StringIO(file.read_text(), newline="")))
        money.append(sum((Decimal(row[column]) for row in rows), Decimal(0)))
    assert money[0] == money[1] != 0
    assert [row["ChargeCategory"] for row in rows] == [*["Usage"] * 8, "Adjustment", "Credit"]


@pytest.mark.io
def test_how_sinks_stand(run: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGO_KEY", "lago-1")
    run.configure(CONFIG | {"sinks": {"lago": LAGO}})
    assert run("sinks", "status") == [{"sink": "lago", "kind": "lago", "state": "never_run"}]
    run.ledger(lambda store: register(store.engine, "lago", 0.0))
    (shown,) = run("sinks", "status")
    assert (shown["state"], shown["pending"], shown["sent"], shown["rejected"]) == ("behind", 2, 0, [])
    assert run("sinks", "retry", "lago") == [{"sink": "lago", "retried": 0}]
    assert "there is no sink 'stripe'" in run.refused("sinks", "retry", "stripe")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"secret": None}, "sinks.lago.secret: is missing"),
        ({"kind": "kafka"}, "sinks.lago.kind: must be `stripe`"),
        ({"url": "lago"}, "sinks.lago.url: must be a URL"),
        ({"secret": "plain"}, "sinks.lago.secret: a secret does not belong in this file"),
        ({"customers": {"anna": 7}}, "sinks.lago.customers.anna: must be a text"),
        ({"since": "soon"}, "sinks.lago.since: must be a day or a time"),
        ({"event": "two words"}, "sinks.lago.event: must be a name"),
        ({"metered": "charge"}, "sinks.lago.metered: unknown field"),
    ],
)
def test_what_no_sink_can_be(change: dict[str, Any], why: str) -> None:
    config = {**CONFIG, "sinks": {"lago": {**LAGO, **change}}}
    with pytest.raises(SettingsError) as refused:
        parse(yaml.safe_dump(config), env={"LAGO_KEY": "lago-1"}, folder=Path(), sinks=SINKS)
    assert str(refused.value).startswith(why)


async def test_what_a_proxy_settles_is_pushed(tokenweir: Callable[..., Tokenweir]) -> None:
    got: list[dict[str, Any]] = []

    async def take(request: web.BaseRequest) -> web.Response:
        assert (request.method, request.path) == ("POST", "/hook")
        got.append(json.loads(await request.read()))
        return web.Response()

    async with serving(take) as url:
        sink = {"kind": "webhook", "url": f"{url}/hook", "secret": "${HOOK}", "since": "2026-01-01"}
        made = tokenweir(start=False, sinks={"books": sink})
        made.environment["HOOK"] = "a-canary-of-a-secret"
        await asyncio.to_thread(made.start)
        key = await asyncio.to_thread(made.key)
        await post_chat(made.url, ask("tera"), key=key)
        await until(lambda: got, within_s=20.0, poll_s=0.05)
    (entry,) = await asyncio.to_thread(made.entries, 1)
    assert got[0]["entry"] == entry
    assert b"a-canary-of-a-secret" not in made.outputs()
