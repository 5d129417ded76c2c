"""The three clients as a user has them: Python `openai` (both kinds), Node `openai`, `curl -N`.

Law: each reads a stream as the providers' own sample code does, `chunk.choices[0]` without a check where no usage was
asked for: whatever the client did not ask for would break it here as it would break it there.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.conformance.stand import Stand
from tests.support import sse
from tests.support.sdks import openai

HERE = Path(__file__).parent
# Nothing that is asked here takes longer, unless it hangs.
CLIENT_S_MAX = 20
INSTALL_S_MAX = 180
# curl: the transfer ended before it was complete; a receive failure.
_CURL_BROKEN = {18, 56}


@dataclass(slots=True)
class Heard:
    """What a client made of one answer."""

    texts: list[str] = field(default_factory=list)
    reasoning: str = ""
    arguments: str = ""
    """of all tool calls, joined in the order of their fragments"""
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    chunks: int = 0
    response_id: str | None = None
    broken: bool = False
    """the client said that the answer broke off"""
    body: bytes | None = None
    """the bytes, where the client shows them"""

    def text(self, *, cumulative: bool) -> str:
        """What was said, for people."""
        return max(self.texts, key=len, default="") if cumulative else "".join(self.texts)

    def take(self, chunk: dict[str, Any], *, usage_asked: bool) -> None:
        """One chunk of a stream, or a whole answer."""
        self.chunks += 1
        self.response_id = self.response_id or chunk["id"]
        if chunk.get("usage"):
            self.usage = chunk["usage"]
        if usage_asked and not chunk["choices"]:
            return
        choice = chunk["choices"][0]  # as the sample does: no check
        part = choice.get("delta") or choice.get("message") or {}
        self.texts.append(part.get("content") or "")
        self.reasoning += part.get("reasoning_content") or ""
        for call in part.get("tool_calls") or ():
            self.arguments += call["function"].get("arguments") or ""
        self.finish_reason = choice.get("finish_reason") or self.finish_reason


def usage_asked(request: dict[str, Any]) -> bool:
    """The client itself wants the usage event."""
    return bool((request.get("stream_options") or {}).get("include_usage"))


class PythonClient:
    """The official SDK, blocking."""

    def __init__(self) -> None:
        self._client = openai.OpenAI(api_key="set for each call", base_url="http://127.0.0.1:9/v1", max_retries=0)

    def ask(self, base_url: str, key: str, request: dict[str, Any]) -> Heard:
        heard = Heard()
        asked = usage_asked(request)
        answer = self._client.with_options(base_url=base_url, api_key=key).chat.completions.create(**request)
        try:
            for chunk in answer if request.get("stream") else (answer,):
                heard.take(chunk.to_dict(), usage_asked=asked)
        except openai.APIConnectionError:
            heard.broken = True
        return heard

    def at(self, stand: Stand, key: str | None = None) -> openai.OpenAI:
        """The SDK itself, ready to ask a deployment."""
        return self._client.with_options(base_url=stand.base_url, api_key=key or stand.key)

    def close(self) -> None:
        self._client.close()


class AsyncPythonClient:
    """The official SDK, asynchronous; an event loop of its own for each question."""

    def ask(self, base_url: str, key: str, request: dict[str, Any]) -> Heard:
        return asyncio.run(self._ask(base_url, key, request))

    async def _ask(self, base_url: str, key: str, request: dict[str, Any]) -> Heard:
        heard = Heard()
        asked = usage_asked(request)
        # Without certificates: reading the system's for each client costs more than the rest of a test.
        http = openai.DefaultAsyncHttpxClient(verify=False)
        async with openai.AsyncOpenAI(api_key=key, base_url=base_url, max_retries=0, http_client=http) as client:
            answer = await client.chat.completions.create(**request)
            if not request.get("stream"):
                heard.take(answer.to_dict(), usage_asked=asked)
                return heard
            try:
                async for chunk in answer:
                    heard.take(chunk.to_dict(), usage_asked=asked)
            except openai.APIConnectionError:
                heard.broken = True
        return heard


class CurlClient:
    """curl without a buffer of its own (`-N`); its bytes are read as a page would."""

    def __init__(self) -> None:
        self._curl = shutil.which("curl")
        if self._curl is None:
            pytest.skip("curl is not on this machine: install it to run its part of the suites")

    def ask(self, base_url: str, key: str, request: dict[str, Any]) -> Heard:
        done = self.run(
            f"{base_url}/chat/completions",
            "-H", f"Authorization: Bearer {key}",
            "-H", "Content-Type: application/json",
            "-d", json.dumps(request),
        )  # fmt: skip
        assert done.returncode in {0, *_CURL_BROKEN}, done.stderr
        heard = Heard(body=done.stdout, broken=done.returncode != 0)
        for chunk in sse.chunks(done.stdout) if request.get("stream") else (json.loads(done.stdout),):
            heard.take(chunk, usage_asked=usage_asked(request))
        return heard

    def run(self, url: str, *options: str) -> subprocess.CompletedProcess[bytes]:
        """`curl -N url …`."""
        assert self._curl is not None
        command = [self._curl, "-N", "-sS", "--noproxy", "*", "--max-time", str(CLIENT_S_MAX), url, *options]
        return subprocess.run(command, capture_output=True, timeout=2 * CLIENT_S_MAX, check=False)


class NodeClient:
    """The official SDK in Node: one process that is asked line by line, for a start costs half a second."""

    def __init__(self, modules: Path) -> None:
        self._folder = TemporaryDirectory(prefix="tokenweir-node-")
        home = Path(self._folder.name)
        for script in (HERE / "node").glob("*.mjs"):
            shutil.copy(script, home)
        (home / "node_modules").symlink_to(modules, target_is_directory=True)
        self.home = home
        self._child = subprocess.Popen(
            ["node", str(home / "client.mjs")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def ask(self, base_url: str, key: str, request: dict[str, Any]) -> Heard:
        said = self.call(base_url, key, request=request, usage_asked=usage_asked(request))
        assert "error" not in said, said["error"]
        return Heard(**said)

    def call(self, base_url: str, key: str, **task: Any) -> dict[str, Any]:
        """One task for client.mjs, and its answer."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps({"base_url": base_url, "key": key, **task}) + "\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        assert line, f"the Node client ended: exit code {self._child.wait(CLIENT_S_MAX)}"
        said: dict[str, Any] = json.loads(line)
        return said

    def run(self, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """A script of the node folder, in a process of its own."""
        return subprocess.run(
            ["node", str(self.home / script)], env={**os.environ, **environment},
            capture_output=True, text=True, encoding="utf-8", timeout=2 * CLIENT_S_MAX, check=False,
        )  # fmt: skip

    def close(self) -> None:
        """End it: it ends when nobody can ask any more."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        self._child.wait(CLIENT_S_MAX)
        self._child.stdout.close()
        self._folder.cleanup()


Client = PythonClient | AsyncPythonClient | CurlClient | NodeClient
"""`ask` asks once, through `base_url` and with `key`, and says what it heard. It raises what the client itself
raises."""


def node_modules() -> Path:
    """The folder with Node's `openai`, installed at the first use; skips the test where that cannot be."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not on this machine: install them to run the Node SDK's part of the suites")
    wanted = (HERE / "node" / "package.json").read_text()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenweir-tests" / "node"
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    folder = cache / version.strip()
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:  # its end frees it
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test workers may come here at the same moment
        if not (folder / "package.json").exists() or (folder / "package.json").read_text() != wanted:
            _install(folder, wanted)
    return folder / "node_modules"


def _install(folder: Path, package_json: str) -> None:
    """Install beside and move into place: a run that is cut short leaves nothing half done."""
    with TemporaryDirectory(prefix="install-", dir=folder.parent) as beside:
        (Path(beside) / "package.json").write_text(package_json)
        command = ["npm", "install", "--no-audit", "--no-fund", "--no-save", "--no-package-lock", "--ignore-scripts"]
        try:
            done = subprocess.run(
                command, cwd=beside, capture_output=True, text=True, timeout=INSTALL_S_MAX, check=False
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"the Node SDK's part is left out, npm did not install `openai` within {INSTALL_S_MAX} s")
        if done.returncode != 0:
            why = " ".join(done.stderr.replace("npm error", "").split())[:200]
            pytest.skip(f"the Node SDK's part is left out, npm could not install `openai`: {why}")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(beside, folder, symlinks=True)
