"""`tokenweir conformance` as it is run: against Tokenweir, which is right, and against gateways that are not."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web

from proxy.cli import main
from proxy.conformance.cases import CASES, selected
from proxy.conformance.run import Plan, RunError, run
from tests.conformance.restarting import Restarting
from tests.support.net import closed_port, free_port
from tests.support.tokenweir import Tokenweir
from tests.support.web_server import serving

pytestmark = [pytest.mark.process, pytest.mark.thorough]

EXAMPLE = Path(__file__).parents[2] / "examples" / "conformance" / "tokenweir.yaml"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "test-a-gateway.md"

# Of all cases, those that `make test` runs with a gateway that is right.
FEW = ("chat-json", "chat-stream", "chat-client-leaves-early")


def not_right() -> set[str]:
    """The cases in which the page says that Tokenweir is not right: the fourth column."""
    rows = re.findall(r"^\| `([a-z-]+)` \|[^|]*\|[^|]*\| ([^|]*) \|", PAGE.read_text(), re.MULTILINE)
    assert rows
    return {case for case, verdict in rows if not verdict.startswith("right")}


def as_in_the_example(folder: Path, port: int) -> Tokenweir:
    """The gateway of the example, at a free port, with the suite's provider at `port`."""
    example = yaml.safe_load(EXAMPLE.read_text().replace(":9911", f":{port}"))
    listen = {"host": "127.0.0.1", "port": free_port()}
    return Tokenweir(folder, providers=example["providers"], models=example["models"], listen=listen)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.conformance.run.POLL_S", 0.1)


def command_line(gateway: str, key: str, bills: str, port: int, *more: str) -> list[str]:
    provider = f"127.0.0.1:{port}"
    return ["conformance", "--gateway", gateway, "--key", key, "--bills", bills, "--provider", provider, *more]


def ledger_of(running: Tokenweir) -> str:
    """The command that prints its bills."""
    config = shlex.quote(str(running.config))
    return f"{shlex.quote(sys.executable)} -m proxy ledger --json --config {config}"


@pytest.mark.parametrize("only", [FEW, pytest.param((), marks=pytest.mark.slow)], ids=["a few cases", "every case"])
def test_tokenweir_relays_every_byte_and_bills_what_is_true(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    only: tuple[str, ...],
) -> None:
    port = free_port()
    with closing(as_in_the_example(tmp_path / "gateway", port).start()) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        key = running.key()
        with Restarting(running) as restarting:
            more = ("--restart", restarting.command, "--json", *(word for one in only for word in ("--only", one)))
            code = main(command_line(running.base_url, key, ledger_of(running), port, *more))
        printed = capsys.readouterr().out
        assert running.unreconciled() == []
    results = [json.loads(line) for line in printed.split("\n") if line]
    cases = [case.upstream_model for case in selected(only)]
    wrong = not_right().intersection(cases)
    assert [result["case"] for result in results] == cases
    assert {result["case"]: result for result in results if not result["right"]}.keys() == wrong
    assert {result["case"] for result in results if result["relayed"] != "bytes"} == {
        *wrong,
        "chat-client-leaves-early",
    }
    assert code == int(bool(wrong))
    assert key not in printed
    # Where a provider said it, nothing is close: it is the same number.
    assert {result["billed"] for result in results if result["reported"] and result["right"]} == {"exact"}


# -- gateways that do wrong --------------------------------------------------------------------------------------


class Gateway:
    """A gateway that passes requests on to the provider and books what it reads; `wrong` says what it does else."""

    def __init__(self, bills: Path, port: int, wrong: str) -> None:
        self.bills = bills
        self._port = port
        self._wrong = wrong

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.json()
        streams = body.get("stream") is True
        if self._wrong == "refuses the key":
            return web.json_response({"error": {"message": "no"}}, status=401)
        if streams and self._wrong != "does not ask":
            body["stream_options"] = {"include_usage": True}
        url = f"http://127.0.0.1:{self._port}{request.path}"
        named = body | {"model": body["model"].partition("/")[2]}
        async with aiohttp.ClientSession() as session, session.post(url, json=named) as upstream:
            answer = web.StreamResponse(status=upstream.status, headers={"Content-Type": upstream.content_type})
            read = b""
            await answer.prepare(request)
            async for piece in upstream.content.iter_any():
                read += piece
                if self._wrong != "holds back":
                    await answer.write(piece)
            if self._wrong == "holds back":
                await answer.write(read)
            self._book(body["model"], read)
            await answer.write_eof()
        return answer

    def _book(self, model: str, read: bytes) -> None:
        usages = [json.loads(line[6:]) for line in read.split(b"\n") if line[:7] == b"data: {"] or [json.loads(read)]
        usage = next((one["usage"] for one in usages if one.get("usage")), {"prompt_tokens": 0, "completion_tokens": 0})
        if self._wrong == "forgets":
            return
        line = {"model": model, "charge_usd": "0.000952", **usage}
        with self.bills.open("a") as file:
            file.write((json.dumps(line) + "\n") * (2 if self._wrong == "books twice" else 1))


@asynccontextmanager
async def gateway(folder: Path, wrong: str) -> AsyncIterator[Plan]:
    """A plan that runs some cases against a gateway that does something wrong."""
    port = free_port()
    bills = folder / "bills.jsonl"
    bills.write_text(
        '{"model": "conformance-openai/chat-stream-declined", "prompt_tokens": 5, "completion_tokens": 7}\n'
    )
    async with serving(Gateway(bills, port, wrong).serve) as url:
        yield Plan(url, "k", f"cat {bills}", selected(["chat-json"]), port=port, wait_s=0.5)


WRONG: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "shows the usage": {
        "chat-json": ("bytes", "exact"),
        "chat-stream-asked": ("bytes", "exact"),
        "chat-stream-declined": ("usage is shown", "exact"),
        "chat-cached": ("usage is shown", "$0.000952 of $0.000856"),
    },
    "does not ask": {
        "chat-json": ("bytes", "exact"),
        "chat-stream-asked": ("bytes", "exact"),
        "chat-stream-declined": ("bytes", "prompt 0 of 80"),
    },
    "holds back": {"chat-json": ("bytes", "exact"), "chat-stream": ("buffered", "exact")},
    "forgets": {"chat-json": ("bytes", "nothing"), "chat-stream-asked": ("bytes", "nothing")},
    "books twice": {"chat-json": ("bytes", "prompt 160 of 80"), "chat-stream-asked": ("bytes", "prompt 160 of 80")},
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_what_a_gateway_does_wrong_is_seen(tmp_path: Path, wrong: str) -> None:
    async with gateway(tmp_path, wrong) as plan:
        only = selected([*WRONG[wrong], "chat-stream-declined"])
        results = {result.case.upstream_model: result for result in await run(replace(plan, cases=only))}
    for name, verdicts in WRONG[wrong].items():
        assert (results[name].relayed, results[name].billed) == verdicts, name
    # What was booked before the run is not of it.
    assert results["chat-stream-declined"].bill.prompt_tokens % 80 == 0
    assert not all(result.right for result in results.values())


async def test_without_a_failure_the_exit_code_is_0_and_people_get_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOKENWEIR_CONFORMANCE_KEY", "k")
    async with gateway(tmp_path, "") as plan:
        only = ["--only", "chat-json", "--only", "chat-killed"]
        arguments = command_line(plan.gateway + "/v1/", "", plan.bills, plan.port, *only)
        assert await asyncio.to_thread(main, arguments) == 0
    header, plain, killed, _, summary = capsys.readouterr().out.rstrip().split("\n")
    assert header.split() == ["case", "relayed", "billed", "completion", "tokens:", "booked,", "true"]
    assert plain.split() == ["✓", "chat-json", "bytes", "exact", "99", "99"]
    assert killed.split() == ["·", "chat-killed", "not", "run", "not", "run"]
    assert summary.split("; ") == [
        "1 of 1 cases are right", "billed exactly: 1", "closely: 0", "with money to compare: 1",
        "relayed byte for byte: 1", "not run: 1",
    ]  # fmt: skip


# -- what cannot be run ------------------------------------------------------------------------------------------


async def test_a_key_that_is_refused_ends_the_run(tmp_path: Path) -> None:
    async with gateway(tmp_path, "refuses the key") as plan:
        with pytest.raises(RunError, match=r"--key: the gateway refuses it \(status 401\)"):
            await run(plan)
        # And the provider's port is free again.
        with pytest.raises(RunError):
            await run(plan)


async def test_a_gateway_that_is_not_there() -> None:
    nowhere = f"http://127.0.0.1:{closed_port()}"
    plan = Plan(nowhere, "k", "true", selected(["chat-json"]), port=free_port())
    with pytest.raises(RunError, match=f"--gateway {nowhere}: no answer"):
        await run(plan)


@pytest.mark.parametrize(("restart", "reason"), [("exit 3", "exit code 3"), ("exec sleep 60", "does not answer after")])
async def test_a_restart_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restart: str, reason: str) -> None:
    monkeypatch.setattr("proxy.conformance.run.RESTART_S_MAX", 0.5)
    async with gateway(tmp_path, "") as plan:
        with pytest.raises(RunError, match=reason):
            await run(replace(plan, cases=selected(["chat-killed"]), restart=restart))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"gateway": ""}, "--gateway: must be a URL"),
        ({"key": ""}, "--key is required"),
        ({"bills": ""}, "--bills is required"),
        ({"gateway": "127.0.0.1:8080"}, "--gateway: must be a URL"),
        ({"provider": "9911"}, "--provider: must be HOST:PORT"),
        ({"provider": "127.0.0.1:http"}, "--provider: must be HOST:PORT"),
        ({"only": "chat-strem"}, "--only: no case has the name 'chat-strem'"),
    ],
)
def test_wrong_usage_names_the_option(capsys: pytest.CaptureFixture[str], more: dict[str, str], reason: str) -> None:
    options: dict[str, Any] = {"gateway": "http://127.0.0.1:1", "key": "k", "bills": "true", **more}
    arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
    with pytest.raises(SystemExit, match=r"^2$"):
        sys.exit(main(["conformance", *arguments]))
    assert reason in capsys.readouterr().err


def test_the_cases_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(CASES)
    assert main(["conformance", "--list", "--json", "--only", "gemini-json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "case": "gemini-json",
        "model": "conformance-gemini/gemini-json",
        "wire": "gemini",
        "what": "an answer that is not streamed",
    }
