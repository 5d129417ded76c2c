"""`tokenweir reconcile --provider NAME --pull`, on a ledger and a server that are real."""

from __future__ import annotations

import asyncio
import json
import logging
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from proxy.cli import main
from proxy.reconciliation.provider_bill import pull
from proxy.reconciliation.provider_bill.bill import DAY_S
from tests.cli.commands import Commands
from tests.ledger.priced_entries import a_real_entry
from tests.reconciliation.provider_bill.admin_server import KEY, AdminServer, admin_server, status
from tests.reconciliation.provider_bill.bills import MIDNIGHT, anthropic, completions, costs, messages, openai, page

pytestmark = pytest.mark.io

MODEL = "tera-large-0901"
NEXT_MORNING = MIDNIGHT + DAY_S + 6 * 3_600.0

Run = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture
async def server() -> AsyncIterator[AdminServer]:
    """The provider says what the ledger has: an exchange of 100 and 50 tokens."""
    used = completions(MODEL, input_tokens=100, input_cached_tokens=33, output_tokens=50, num_model_requests=1)
    pages = {
        "organization/usage/completions": [page(openai(used))],
        "organization/costs": [page(openai(costs("0.00002752", f"{MODEL}, input")))],
        "organizations/usage_report/messages": [page(anthropic(messages("claude-x")))],
    }
    async with admin_server(pages=pages) as running:
        yield running


@pytest.fixture
def run(
    tmp_path: Path, server: AdminServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Settles an exchange of yesterday; runs the command in a thread beside the server, the next morning."""
    providers = {
        "tera": {"base_url": "http://127.0.0.1:1/v1", "admin_url": server.url, "admin_key": "${ADMIN_KEY}"},
        "claude": {"base_url": f"{server.url}", "admin_url": server.url, "admin_key": "${ADMIN_KEY}"}
        | {"dialects": ["anthropic"]},
        "keyless": {"base_url": "https://api.openai.com/v1"},
        "gateway": {"base_url": "https://gateway.test/v1", "admin_key": "${ADMIN_KEY}"},
    }
    commands = Commands(tmp_path, capsys, {"providers": providers, "models": {"*": {"provider": "tera"}}})
    monkeypatch.setenv("ADMIN_KEY", KEY)
    monkeypatch.setattr(pull, "LIMITS", pull.PullLimits(backoff_s=0.0))
    monkeypatch.setattr("proxy.cli.provider_bill.time", SimpleNamespace(time=lambda: NEXT_MORNING))
    commands.settle(a_real_entry(0, started_at=MIDNIGHT + 3_600.0))

    async def reconcile(*options: str, name: str = "tera") -> tuple[int, str, str]:
        arguments = ["reconcile", "--config", str(commands.config), "--provider", name, *options]
        code = await asyncio.to_thread(main, arguments)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return reconcile


async def test_yesterday_is_pulled_and_compared(run: Run, server: AdminServer) -> None:
    code, out, err = await run("--pull")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "every difference is explained"
    rows = [line.split() for line in out.splitlines()]
    assert rows[1] == ["2026-11-01", MODEL, "requests", "1", "1", "0", "0", "equal"]
    assert ["2026-11-01", MODEL, "cost", "USD", "0.00002752", "0.00002752", "0", "0", "equal"] in rows
    assert {("start_time", str(MIDNIGHT)), ("end_time", str(MIDNIGHT + DAY_S))} <= set(server.requests[0][1])


async def test_a_difference_is_exit_code_1(run: Run, server: AdminServer) -> None:
    server.pages["organization/usage/completions"] = [page(openai())]
    code, out, _ = await run("--pull")
    assert code == 1
    assert out.splitlines()[-1].endswith("numbers differ")


@pytest.mark.parametrize("name", ["tera", "claude"])
async def test_what_was_pulled_is_compared_again_from_its_file(run: Run, tmp_path: Path, name: str) -> None:
    file = tmp_path / "pulled.jsonl"
    pulled = await run("--pull", "--save", str(file), "--json", name=name)
    assert pulled[1]
    assert await run("--file", str(file), "--json", name=name) == pulled
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert all(json.loads(line)["page"]["object"] == "page" for line in file.read_text().splitlines())
    assert KEY not in file.read_text()


async def test_a_period_is_pulled(run: Run, server: AdminServer) -> None:
    code, _, _ = await run("--pull", "--since", "2026-10-31", "--until", "2026-11-02")
    assert code == 0
    assert ("start_time", str(MIDNIGHT - DAY_S)) in server.requests[0][1]


async def test_refusals_are_one_line(run: Run) -> None:
    refusals: list[tuple[str, list[str], str]] = [
        ("keyless", [], "providers.keyless.admin_key: is missing"),
        ("gateway", [], "providers.gateway.admin_url: is missing"),
        ("nobody", [], "--provider: no provider of this name is configured"),
        ("tera", ["--since", "2026-11-02"], "--since and --until: have no whole day (UTC)"),
        ("tera", ["--save", "/nowhere/pulled.jsonl"], "/nowhere/"),
    ]
    for name, options, words in refusals:
        code, out, err = await run("--pull", *options, name=name)
        assert (code, out, err.count("\n")) == (3 if "no provider of this name" in words else 1, "", 1)
        assert words in err


@pytest.mark.parametrize("code", [401, 403, 500])
async def test_half_a_pull_compares_and_saves_nothing(
    run: Run, server: AdminServer, tmp_path: Path, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The second endpoint fails; the key is in no output, although the server says it."""
    caplog.set_level(logging.DEBUG)
    server.always = status(code)
    server.faults = [server_pages(server)]
    file = tmp_path / "pulled.jsonl"
    exit_code, out, err = await run("--pull", "--save", str(file))
    assert (exit_code, out, err.count("\n")) == (1, "", 1)
    assert f"providers.tera: organization/usage/embeddings: HTTP {code}" in err
    assert not list(tmp_path.glob("*pulled*"))
    assert KEY not in err + caplog.text


def server_pages(server: AdminServer) -> Any:
    """The answer of one request from the pages."""

    async def answer(request: Any) -> Any:
        always, server.always = server.always, None
        server.requests.pop()
        try:
            return await server.answer(request)
        finally:
            server.always = always

    return answer


async def test_a_page_that_cannot_be_read_names_the_provider(run: Run, server: AdminServer) -> None:
    server.pages["organization/costs"] = [page(openai(costs(1, "a", "eur")))]
    code, out, err = await run("--pull")
    assert (code, out) == (1, "")
    where = "line 8: organization/costs: data[0].results[0].amount.currency"
    assert err == f"tokenweir: providers.tera: {where}: must be usd\n"


async def test_file_and_pull_exclude_each_other(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refusal:
        await run("--pull", "--file", "x.json")
    assert refusal.value.code == 2
    assert "not allowed with" in capsys.readouterr().err
