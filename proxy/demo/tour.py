"""`tokenweir demo`: a scripted provider, a proxy, a client and a kill -9; then the ledger explains every number.

Invariant: the output shows real results only. The proxy is the ordinary command in its own process, the ledger is read
with the ordinary command, and the last section compares it with the provider's own log.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

PROVIDER_KEY = "sk-of-the-scripted-provider"
SYSTEMS = ("tera", "tensorloop", "siliconstorm", "electron")
# Slow enough to watch, fast enough to wait for.
PACE_MS = 20
START_S_MAX = 30.0
# Fits four answers of sixteen tokens.
BUDGET_USD, CROWD = "0.0001", 10
_QUESTION = [{"role": "user", "content": "What does a weir do?"}]
_ROOT = Path(__file__).parents[2]

_CONFIG = """\
listen: {host: 127.0.0.1, port: 0}
admin: {port: 0, secret: "${DEMO_ADMIN_SECRET}"}
data_dir: ./data
providers:
  tera:         {base_url: "UPSTREAM/v1", api_key: "${DEMO_PROVIDER_KEY}", on_client_disconnect: cancel}
  tensorloop:   {base_url: "UPSTREAM/v1", api_key: "${DEMO_PROVIDER_KEY}", on_client_disconnect: drain}
  siliconstorm: {base_url: "UPSTREAM/v1", api_key: "${DEMO_PROVIDER_KEY}", on_client_disconnect: cancel}
  electron:     {base_url: "UPSTREAM/waves/v1", api_key: "${DEMO_PROVIDER_KEY}", on_client_disconnect: drain}
models:
  tera:         {provider: tera,         price: {input: 0.30, output: 1.20}, cost: {input: 0.25, output: 1.00}}
  tensorloop:   {provider: tensorloop,   price: {input: 0.20, output: 0.80}, cost: {input: 0.15, output: 0.60}}
  siliconstorm: {provider: siliconstorm, price: {input: 0.40, output: 1.60}, cost: {input: 0.30, output: 1.20}}
  electron:
    provider: electron
    price: {input: 0.10, cached_input: 0.05, output: 0.40}
    cost: {input: 0.08, cached_input: 0.04, output: 0.32}
"""


class Child:
    """A child process of the demo."""

    def __init__(self, child: asyncio.subprocess.Process, log: Path) -> None:
        self._child = child
        self._log = log

    @classmethod
    async def start(cls, folder: Path, environment: Mapping[str, str], *arguments: str) -> Child:
        """Run `python -m …` in `folder`."""
        path = folder / "log.txt"
        with path.open("ab") as log:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *arguments,
                cwd=folder, env=dict(environment), stdout=asyncio.subprocess.PIPE, stderr=log,
            )  # fmt: skip
        return cls(child, path)

    async def line_with(self, text: str) -> str:
        """The first printed line that contains `text`. Raises RuntimeError if the process ends without it."""
        assert self._child.stdout is not None
        async with asyncio.timeout(START_S_MAX):
            while line := await self._child.stdout.readline():
                if text in line.decode():
                    return line.decode().strip()
        raise RuntimeError(f"a process of the demo did not start: {self._log.read_text()[-2000:]}")

    async def end(self, number: signal.Signals) -> None:
        """Send the process a signal and wait for its end."""
        with suppress(ProcessLookupError):
            self._child.send_signal(number)
        await self._child.wait()


class Deployment:
    """The demo's proxy, in its own folder."""

    def __init__(self, folder: Path, provider_url: str, more: str = "") -> None:
        """`more`: further lines of the configuration, models first."""
        self.folder = folder
        self.config = folder / "tokenweir.yaml"
        self.config.write_text(_CONFIG.replace("UPSTREAM", provider_url) + more)
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        self.admin_secret = secrets.token_hex(32)
        self.variables = {
            "TOKENWEIR_CONFIG": str(self.config),
            "DEMO_PROVIDER_KEY": PROVIDER_KEY,
            "DEMO_ADMIN_SECRET": self.admin_secret,
        }
        """with these, other commands use this deployment"""
        self.environment = {**os.environ, **self.variables, "PYTHONPATH": path}
        self.url = self.console_url = ""
        self._child: Child | None = None

    async def start(self) -> None:
        """Start the proxy."""
        arguments = ("proxy", "serve", "--config", str(self.config))
        self._child = await Child.start(self.folder, self.environment, *arguments)
        self.console_url = (await self._child.line_with("console at")).split()[-1]
        self.url = (await self._child.line_with("listening on")).split()[-1]

    async def end(self, number: signal.Signals) -> None:
        """Stop the proxy with this signal."""
        if self._child is not None:
            await self._child.end(number)

    async def command(self, *arguments: str) -> str:
        """The output of `tokenweir …`."""
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "proxy", *arguments, "--config", str(self.config),
            cwd=self.folder, env=self.environment, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        printed, _ = await child.communicate()
        if child.returncode:
            raise RuntimeError(f"tokenweir {' '.join(arguments)} failed with exit code {child.returncode}")
        return printed.decode()

    async def settled(self, count: int) -> list[dict[str, Any]]:
        """The ledger's entries, once there are at least `count`."""
        async with asyncio.timeout(START_S_MAX):
            while True:
                printed = await self.command("ledger", "--json")
                entries = [json.loads(line) for line in printed.split("\n") if line]
                if len(entries) >= count:
                    return entries
                await asyncio.sleep(0.1)


async def tour(*, keep: bool) -> int:
    """Run the demo; returns the exit code."""
    async with (
        _providers() as (folder, provider_url),
        _serving(Deployment(folder, provider_url)) as deployment,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session,
    ):
        agreed = await _show(session, deployment, provider_url)
        if keep:
            await _keep(deployment)
    return 0 if agreed else 1


async def deployment_with_history() -> int:
    """Serve a ledger with sixty days of use until Ctrl-C, and print what it must answer; returns the exit code."""
    from proxy.demo.history import answers_text, configuration, write_history

    async with _providers() as (folder, provider_url):
        deployment = Deployment(folder, provider_url, configuration())
        _title("tokenweir demo --full: two customers and sixty days of use; deleted at the end")
        answers = await asyncio.to_thread(write_history, deployment.config, deployment.environment)
        async with _serving(deployment):
            _title("Questions to the console, and the answers of the records themselves")
            for line in answers_text(answers):
                _line(line)
            await _keep(deployment)
    return 0


@asynccontextmanager
async def _providers() -> AsyncIterator[tuple[Path, str]]:
    """A folder that is deleted at the end, and the URL of the scripted providers."""
    folder = Path(tempfile.mkdtemp(prefix="tokenweir-demo-"))
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    options = ("--port", "0", "--pace-ms", str(PACE_MS), "--parent", str(os.getpid()))
    try:
        provider = await Child.start(folder, environment, "proxy.demo.provider", *options)
        try:
            yield folder, f"http://127.0.0.1:{json.loads(await provider.line_with('port'))['port']}"
        finally:
            await provider.end(signal.SIGTERM)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def _serving(deployment: Deployment) -> AsyncIterator[Deployment]:
    try:
        await deployment.start()
        yield deployment
    finally:
        await deployment.end(signal.SIGTERM)


async def _show(session: aiohttp.ClientSession, deployment: Deployment, provider_url: str) -> bool:
    _title("tokenweir demo: everything runs on this machine and is deleted at the end")
    _line(f"providers  {provider_url}  (scripted: {', '.join(SYSTEMS)})")
    _line(f"tokenweir  {deployment.url}  (journal and ledger in {deployment.folder})")
    key = json.loads(await deployment.command("keys", "create", "--alias", "demo"))
    _line(f"a key      {key['hint']}  (alias demo; stored only as a keyed hash)")
    client = DemoClient(session, deployment, key["key"])

    _title("1. Four providers, four stream formats: the text as the client receives it")
    for system in SYSTEMS:
        await client.watch(system)

    _title("2. A client that disconnects in mid-stream: two policies")
    _line("tera stops generating on disconnect: the proxy closes the stream and estimates the usage.")
    await client.watch("tera", leave_after=8)
    _line("tensorloop continues and bills: the proxy reads the rest for the reported usage.")
    await client.watch("tensorloop", leave_after=8)
    await deployment.settled(6)

    _title("3. kill -9 in mid-stream, and the recovery")
    await client.watch("electron", leave_after=10, at_leaving=lambda: deployment.end(signal.SIGKILL))
    _line("the proxy was killed. Restarted on the same folder:")
    await deployment.start()
    entries = await deployment.settled(7)
    crashed = [entry for entry in entries if entry["outcome"] == "crashed"]
    _line(f"{len(crashed)} exchange recovered from its journal: {crashed[0]['events']} events had been recorded.")

    _title(f"4. A budget, and {CROWD} requests at once")
    limits = ("--budget", BUDGET_USD, "--budget-window", "none")
    small = json.loads(await deployment.command("keys", "create", "--alias", "small", *limits))["key"]
    served, refused = await DemoClient(session, deployment, small).crowd("tera")
    _line(f"{BUDGET_USD} USD: {served} requests fit and are served, {refused} get 402 insufficient_quota.")
    entries = await deployment.settled(7 + served)
    for line in (await deployment.command("budgets", "show")).rstrip().split("\n"):
        _line(line)

    _title("5. The ledger, with an explanation of each number")
    for line in (await deployment.command("ledger", "--explain")).rstrip().split("\n"):
        _line(line)
    return await _compare(session, provider_url, entries)


class DemoClient:
    """A client that reads streams through the proxy."""

    def __init__(self, session: aiohttp.ClientSession, deployment: Deployment, key: str) -> None:
        self._session = session
        self._deployment = deployment
        self._headers = {"Authorization": f"Bearer {key}"}

    async def watch(
        self, system: str, *, leave_after: int | None = None, at_leaving: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Print a stream as it arrives; disconnect after `leave_after` events."""
        print(f"   {system:<13}", end="", flush=True)
        events = 0
        async with self._stream(system) as lines:
            async for text in lines:
                print(text, end="", flush=True)
                events += 1
                if events == leave_after:
                    if at_leaving is not None:
                        await at_leaving()
                    break
        print(f"  [{'disconnected after ' if leave_after else ''}{events} events]")

    async def crowd(self, system: str) -> tuple[int, int]:
        """Request CROWD short answers at once; returns the number served and the number refused with 402."""
        body = {"model": system, "max_tokens": 16, "messages": _QUESTION}
        url = f"{self._deployment.url}/v1/chat/completions"

        async def status() -> int:
            async with self._session.post(url, json=body, headers=self._headers) as answer:
                await answer.read()
                return answer.status

        await self._accepted()
        statuses = await asyncio.gather(*(status() for _ in range(CROWD)))
        return statuses.count(200), statuses.count(402)

    async def _accepted(self) -> None:
        """Wait until the running proxy has loaded the new key, which takes up to a second."""
        async with asyncio.timeout(START_S_MAX):
            while True:
                async with self._session.get(f"{self._deployment.url}/v1/models", headers=self._headers) as answer:
                    if answer.status == 200:
                        return
                await asyncio.sleep(0.1)

    @asynccontextmanager
    async def _stream(self, system: str) -> AsyncIterator[AsyncIterator[str]]:
        request = {"model": system, "stream": True, "messages": _QUESTION}
        url = f"{self._deployment.url}/v1/chat/completions"
        answer = await self._session.post(url, json=request, headers=self._headers)
        try:
            answer.raise_for_status()
            yield _texts(answer)
        finally:
            answer.close()


async def _texts(answer: aiohttp.ClientResponse) -> AsyncIterator[str]:
    """The text of each event."""
    async for line in answer.content:
        if line.startswith(b"data:") and line.strip() != b"data: [DONE]":
            choices = json.loads(line[5:]).get("choices") or [{}]
            yield (choices[0].get("delta") or {}).get("content") or ""


async def _compare(session: aiohttp.ClientSession, provider_url: str, entries: list[dict[str, Any]]) -> bool:
    """Compare the ledger with the provider's log, in the order of the requests."""
    _title("6. The provider's log compared with the ledger: output tokens")
    async with session.get(f"{provider_url}/_control/log") as answer:
        truth = (await answer.json())["exchanges"]
    agreed = True
    ordered = sorted(entries, key=lambda entry: str(entry["exchange_id"]))
    for entry, exchange in zip(ordered, truth, strict=True):
        ours, theirs, source = entry["completion_tokens"], exchange["completion_tokens"], entry["usage_source"]
        exact = ours == theirs
        agreed = agreed and (exact or source == "estimated")
        verdict = "exact" if exact else f"estimated, {ours - theirs:+d}"
        _line(f"{entry['model']:<13} {entry['outcome']:<12} provider {theirs:>3}   ledger {ours:>3}   {verdict}")
    charge = sum(float(entry["charge_usd"]) for entry in entries)
    cost = sum(float(entry["cost_usd"]) for entry in entries)
    _line(f"billed {charge:.6f} USD, cost {cost:.6f} USD; every admitted exchange has exactly one entry")
    return agreed


async def _keep(deployment: Deployment) -> None:
    key = json.loads(await deployment.command("keys", "create", "--alias", "yours"))["key"]
    _title("The proxy keeps running until Ctrl-C. In another terminal:")
    _line(f"export KEY={key}")
    body = '{"model":"electron","stream":true,"messages":[{"role":"user","content":"hello"}]}'
    _line(f"curl -N {deployment.url}/v1/chat/completions -H \"Authorization: Bearer $KEY\" -d '{body}'")
    _line(f"curl {deployment.url}/metrics")
    _title("For other commands on this ledger, such as `tokenweir keys list`, and those of docs/how-to")
    for name, value in deployment.variables.items():
        _line(f"export {name}={value}")
    _title("The console, in a browser")
    _line(f"{deployment.console_url}  (sign in with this secret for everything, or with the key for its own data)")
    _line(deployment.admin_secret)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()


def _title(title: str) -> None:
    print(f"\n{title}")


def _line(text: str) -> None:
    print(f"   {text}")
