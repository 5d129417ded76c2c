"""The programs of the folders beside this one: fetched, built, run; what an SDK's program reports.

Invariant: a program sees no setting of this machine but its path, and of the proxy a URL and keys. Its report has
every scenario that is expected of it, and no other.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.real import litellm
from tests.real.cached import build, cached, fetch, python_environment
from tests.real.sdks.answers import ANSWERS

HERE = Path(__file__).parent
# All scenarios of one program; usually a few seconds.
RUN_S_MAX = 120.0
REFUSED = ("unknown_key", "spent", "limited")

Report = dict[str, Any]


def needed(*tools: str) -> None:
    """Skips the test where one is absent."""
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not on this machine: install it to run the SDKs that need it")


def _named(language: str) -> tuple[str, list[Path]]:
    """The folder in the cache for these sources, and the sources."""
    sources = sorted(path for path in (HERE / language).rglob("*") if path.is_file() and path.suffix != ".pyc")
    content = b"".join(path.read_bytes() for path in sources)
    return f"sdks-{language}-{hashlib.sha256(content).hexdigest()[:16]}", sources


def go(program: str) -> list[str]:
    needed("go")
    name, _ = _named("go")
    # Without optimisation of what others wrote: an SDK of this size is compiled in half the time.
    flags = ["-gcflags=github.com/...=-N -l", "-ldflags=-s -w"]
    local = {"GOTOOLCHAIN": "local"}

    def make(home: Path) -> None:
        fetch(["go", "list", "-deps", "-f", "", "./..."], HERE / "go", local)
        build(["go", "build", *flags, "-o", f"{home}/", "./openai", "./anthropic"], HERE / "go", local)

    return [str(cached(name, make) / program)]


def java(program: str) -> list[str]:
    needed("java", "javac", "mvn")
    name, sources = _named("java")

    def make(home: Path) -> None:
        jars = f"-DoutputDirectory={home}/jars"
        fetch(["mvn", "-q", "-B", "dependency:copy-dependencies", "-f", HERE / "java" / "pom.xml", jars], home)
        programs = [path for path in sources if path.suffix == ".java"]
        build(["javac", "-proc:none", "-nowarn", "-cp", f"{home}/jars/*", "-d", home / "classes", *programs], home)

    home = cached(name, make)
    return ["java", "-cp", f"{home}/classes:{home}/jars/*", program]


def node(program: str) -> list[str]:
    needed("node", "npm")
    name, sources = _named("node")

    def make(home: Path) -> None:
        for path in sources:
            shutil.copy(path, home)
        fetch(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"], home)

    return ["node", str(cached(name, make) / f"{program}.mjs")]


def python(program: str) -> list[str]:
    """The command of a program in Python, in an environment of its own."""
    folder = HERE / "python"
    if program == "litellm":
        home = litellm.installed()
    else:
        wanted = (folder / "requirements.txt").read_text().split()
        home = python_environment("sdks-python-" + "-".join(wanted), *wanted)
    return [str(home / "bin" / "python"), "-B", str(folder / f"ask_{program}.py")]


def run(command: list[str], environment: Mapping[str, str]) -> dict[str, Report]:
    """What a program reports, by scenario. It sees these variables and no others of this machine."""
    home = {name: os.environ[name] for name in ("PATH", "HOME")}
    done = subprocess.run(
        command, env={**home, **environment}, capture_output=True, text=True, encoding="utf-8", timeout=RUN_S_MAX,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    reports = [json.loads(line) for line in done.stdout.split("\n") if line]
    return {one["scenario"]: one for one in reports}


@dataclass(frozen=True)
class Program:
    """One SDK."""

    language: str
    """of its requests"""
    command: Callable[[str], list[str]]
    name: str
    """among the programs that are made the same way"""
    raises: tuple[str, str, str]
    """classes of its errors, in the order of REFUSED"""
    without: tuple[str, ...] = ()
    """answers that it has no call for, or gives away no detail of"""
    finishes: Mapping[str, str] = field(default_factory=dict)
    """its own words for reasons to stop"""
    more: tuple[str, ...] = ("models",)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"{self.command.__name__}-{self.name.lower()}"

    @property
    def answered(self) -> list[str]:
        """The scenarios that end in an answer."""
        return [name for name in ANSWERS[self.language] if name not in (*self.without, "leave")]

    def model(self, scenario: str) -> str:
        return f"{self.language}/{self.id}.{scenario}"

    def run(self, environment: Mapping[str, str]) -> dict[str, Report]:
        """What it reports, by scenario. Skips the test where it cannot be had."""
        reports = run(self.command(self.name), {"MODELS": self.model(""), **environment, **self.environment})
        assert reports.keys() == {*self.answered, *REFUSED, *self.more, "leave", "broken"}
        return reports


Reports = Callable[[Program], dict[str, Report]]

_NODE = ("AuthenticationError", "APIError", "RateLimitError")
_JAVA = ("UnauthorizedException", "UnexpectedStatusCodeException", "RateLimitException")
_GO = ("*apierror.Error",) * 3
_AI = ("AI_APICallError",) * 3
_AI_FINISHES = {"tools": "tool-calls", "responses_tools": "tool-calls", "responses": "stop", "responses_stream": "stop"}
_COUNTS = ("models", "count_tokens")
_LITELLM = ("AuthenticationError", "APIError", "RateLimitError")
_COHERE = ("UnauthorizedError", "ApiError", "TooManyRequestsError")
_RESPONSES = ("responses", "responses_stream", "responses_tools")

PROGRAMS = (
    Program("openai", go, "openai", _GO),
    Program("anthropic", go, "anthropic", _GO, more=_COUNTS),
    Program("openai", java, "OpenAi", _JAVA),
    Program("anthropic", java, "Anthropic", (_JAVA[0], "PaymentRequiredException", _JAVA[2]), more=_COUNTS),
    Program("openai", node, "openai", _NODE),
    Program("anthropic", node, "anthropic", (_NODE[0], "PaymentRequiredError", _NODE[2]), more=_COUNTS),
    Program("openai", node, "ai", _AI, without=("stream", "embeddings"), finishes=_AI_FINISHES, more=()),
    Program("mistral", python, "mistral", ("SDKError",) * 3),
    Program("cohere", python, "cohere", _COHERE),
    Program("ollama", python, "ollama", ("ResponseError",) * 3),
    Program(
        "openai", python, "litellm", _LITELLM, without=("stream", "embeddings", *_RESPONSES), more=(),
        environment={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    ),
)  # fmt: skip
