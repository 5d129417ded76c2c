"""The scripted provider for tests: a separate process, plans by name, and a log of all exchanges."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPConnection
from os import getpid
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import msgspec
import pytest

from proxy.demo.provider import named
from proxy.demo.script import (
    AS_SENT,
    AnyStep,
    Cut,
    End,
    Fin,
    Raw,
    Reset,
    Script,
    Send,
    Shape,
    Stall,
    Wait,
    json_script,
)
from proxy.demo.shapes import error_object

ROOT = Path(__file__).parents[2]
# A cold start of the interpreter on a loaded machine; usually 0.2 s.
START_S_MAX = 20.0
STOP_S_MAX = 5.0
# The answer to a control comes in a millisecond, unless the whole log of a soak is asked for.
CONTROL_S_MAX = 10.0

Chunking = Literal["event", "whole", "byte", "random"]
Ending = Literal["reset", "fin", "stall"]


class ScriptedProvider:
    """One provider process on a free port. End it with `close`."""

    def __init__(self, *, pace_ms: float = 0, host: str = "127.0.0.1") -> None:
        command = [sys.executable, "-m", "proxy.demo.provider", "--host", host, "--port", "0"]
        command += ["--parent", str(getpid()), "--pace-ms", str(pace_ms)]
        self._child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        assert line, f"the scripted provider did not start: exit code {self._child.wait(START_S_MAX)}"
        self.port: int = json.loads(line)["port"]
        self._control = HTTPConnection(host, self.port, timeout=CONTROL_S_MAX)
        self._controlling = Lock()
        self.url = f"http://{host}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id, for tests that stop or kill it."""
        return self._child.pid

    @property
    def base_url(self) -> str:
        """The base URL as a provider's configuration has it."""
        return f"{self.url}/v1"

    def script(self, name: str, plan: Script | Shape | Sequence[AnyStep]) -> str:
        """Answer requests for model `name` by `plan` (bare steps: a chunked stream); gives `name` back."""
        if not isinstance(plan, Script | Shape):
            plan = Script(steps=tuple(plan))
        self._call("POST", "/_control/scripts", msgspec.json.encode({"name": name, "plan": plan}))
        return name

    def log(self, model: str | None = None) -> list[dict[str, Any]]:
        """The exchanges it saw (proxy.demo.provider.Exchange), oldest first, live; of one model if named."""
        exchanges: list[dict[str, Any]] = self._call("GET", "/_control/log")["exchanges"]
        return [one for one in exchanges if model is None or named(one["path"], one["body"]) == model]

    def ended(self, count: int = 1, model: str | None = None, *, timeout_s: float = 10) -> list[dict[str, Any]]:
        """The log, once at least `count` exchanges have ended and none is live. Raises TimeoutError."""

        def ended(log: list[dict[str, Any]]) -> bool:
            return len(log) >= count and all(one["duration_s"] is not None for one in log)

        return self.until(ended, model, timeout_s=timeout_s)

    def until(
        self, holds: Callable[[list[dict[str, Any]]], bool], model: str | None = None, *, timeout_s: float = 10
    ) -> list[dict[str, Any]]:
        """The log as soon as `holds` is true of it. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while not holds(log := self.log(model)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the provider's log is not as expected: {log}")
            time.sleep(0.01)
        return log

    def reset(self) -> None:
        """Forget all scripts and the log."""
        self._call("POST", "/_control/reset")

    def close(self) -> None:
        """End the process and wait for it. Idempotent."""
        self._control.close()
        self._child.terminate()
        try:
            self._child.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        assert self._child.stdout is not None
        self._child.stdout.close()

    def _call(self, method: str, path: str, body: bytes = b"") -> Any:
        with self._controlling:
            try:
                self._control.request(method, path, body)
                response = self._control.getresponse()
                answer = json.loads(response.read())
            except BaseException:
                self._control.close()
                raise
        assert response.status == 200, f"{method} {path}: {response.status} {answer}"
        return answer


@pytest.fixture(scope="session")
def provider_process() -> Iterator[ScriptedProvider]:
    """One provider process for the whole test session."""
    provider = ScriptedProvider()
    yield provider
    provider.close()


@pytest.fixture
def provider(provider_process: ScriptedProvider) -> ScriptedProvider:
    """The provider process with no scripts and an empty log."""
    provider_process.reset()
    return provider_process


def chunking(how: Chunking, seed: int = 0) -> Cut:
    """How a body is parted into HTTP chunks: `event` is one per event given."""
    return {"event": AS_SENT, "whole": Cut(whole=True), "byte": Cut(size=1), "random": Cut(seed=seed)}[how]


def sends(events: Sequence[bytes], *, pace_ms: float = 0, tokens: Sequence[int] = ()) -> list[Send | Wait]:
    """One step per event, `pace_ms` between them; `tokens`: how many each counts for, none if not said."""
    steps: list[Send | Wait] = []
    for position, event in enumerate(events):
        if position and pace_ms:
            steps.append(Wait(pace_ms))
        steps.append(Send(event, tokens[position] if tokens else 0))
    return steps


def sse_script(
    events: Sequence[bytes],
    *,
    how: Chunking = "event",
    seed: int = 0,
    wire: Cut = AS_SENT,
    wire_pause_ms: float | None = None,
    pace_ms: float = 0,
) -> Script:
    """A complete event stream of these bytes, split into HTTP chunks and writes by the arguments."""
    return Script(
        steps=tuple(sends(events, pace_ms=pace_ms)),
        chunking=chunking(how, seed),
        wire=wire,
        wire_pause_ms=wire_pause_ms,
    )


def broken_after(events: Sequence[bytes], how: Ending, *, pace_ms: float = 0) -> Script:
    """These events, and then no end: a reset, a close without the last chunk, or silence for ever."""
    endings: dict[Ending, Reset | Fin | Stall] = {"reset": Reset(), "fin": Fin(), "stall": Stall()}
    # A reset may overtake what the receiver has not read yet: give it the time to.
    pause = (Wait(20),) if how == "reset" and events else ()
    return Script(steps=(*sends(events, pace_ms=pace_ms), *pause, endings[how]))


def json_instead(payload: dict[str, Any], status: int = 200) -> Script:
    """A JSON answer, also to a request for a stream."""
    return json_script(payload, status)


def error_script(status: int, message: str, headers: Sequence[tuple[str, str]] = ()) -> Script:
    """An error answer in OpenAI's shape."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return json_script(error_object(message, kind), status, tuple(headers))


def gzipped(events: Sequence[bytes]) -> Script:
    """An event stream that is compressed without a request for it."""
    return Script(steps=tuple(sends(events)), gzip=True)


def redirect(location: str, status: int = 307) -> Script:
    return json_script({}, status, (("Location", location),))


def silent() -> Script:
    """Accept the request and send nothing."""
    return Script(steps=(Stall(),), framing="raw")


def hangs_up() -> Script:
    """Accept the request and close the connection."""
    return Script(steps=(Fin(),), framing="raw")


def garbage(wire: bytes = b"\x16\x03\x01\x02\x00 this is not HTTP\r\n\r\n") -> Script:
    """Send bytes that are not HTTP."""
    return Script(steps=(Raw(wire), Fin()), framing="raw")


def long_line(line_bytes: int, after: Sequence[bytes] = ()) -> Script:
    """An event stream whose first line is very long and ends, and then these events."""
    block = 64 * 1024
    head, tail = b'data: {"padding":"', b'"}\n\n'
    padding = Send(b"x" * block, times=max(1, line_bytes // block))
    return Script(steps=(Send(head), padding, Send(tail), *sends(after), End()))


def refuses_stream_options(events: Sequence[bytes], status: Literal[400, 422] = 400) -> Script:
    """`status` until the request has no `stream_options`, then these events."""
    return Script(steps=tuple(sends(events)), refuse_stream_options=status)
