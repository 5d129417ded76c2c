"""Coding agents as npm ships them: the Codex CLI, Claude Code and OpenCode, told nothing but where the proxy is.

Invariant: an agent runs in a home and a folder of its own and sees no setting of this machine.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.real.cached import cached, fetch
from tests.real.sdks.programs import needed

CODEX = "@openai/codex@0.169.0"
CLAUDE_CODE = "@anthropic-ai/claude-code@2.1.197"
OPENCODE = "opencode-ai@1.18.33"
# A turn takes seconds; one that waits for a network takes minutes.
RUN_S_MAX = 90.0
QUESTION = "How much water goes over the weir?"


def _installed(package: str, pattern: str) -> str:
    """The program that a package ships for this machine; skips the test where it has none."""
    needed("npm")
    name = "sdks-" + package.strip("@").replace("/", "-").replace("@", "-")

    def make(home: Path) -> None:
        (home / "package.json").write_text('{"private": true}')
        fetch(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", package], home)

    found = sorted(cached(name, make).glob(f"node_modules/{pattern}"))
    if not found:
        pytest.skip(f"{package} has no program for this machine")
    return str(found[0])


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """What it printed, run in an empty folder."""
    work = folder / "work"
    work.mkdir()
    own = {"HOME": str(folder), "PATH": "/usr/local/bin:/usr/bin:/bin", "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(
        command, cwd=work, env=own | dict(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        encoding="utf-8", timeout=RUN_S_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    return done.stdout


def codex(folder: Path, config: str, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """One turn of the Codex CLI with this configuration: the events that it prints."""
    program = _installed(CODEX, "@openai/codex-*/vendor/*/bin/codex")
    quiet = "check_for_update_on_startup = false\n{}\n[analytics]\nenabled = false\n"
    (folder / "config.toml").write_text(quiet.format(config))
    options = ["--json", "--strict-config", "--skip-git-repo-check", "--sandbox", "read-only"]
    told = _run([program, "exec", *options, QUESTION], folder, {"CODEX_HOME": str(folder), **environment})
    return [json.loads(line) for line in told.split("\n") if line]


def claude_code(folder: Path, model: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """One turn of Claude Code: the result that it prints."""
    program = _installed(CLAUDE_CODE, "@anthropic-ai/claude-code-*/claude")
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
    own = {"CLAUDE_CONFIG_DIR": str(folder / "config"), "ANTHROPIC_SMALL_FAST_MODEL": model}
    command = [program, "--print", QUESTION, "--output-format", "json", "--model", model]
    told: dict[str, Any] = json.loads(_run(command, folder, {**quiet, **own, **environment}))
    return told


def opencode(folder: Path, provider: str, model: str, options: Mapping[str, str]) -> list[dict[str, Any]]:
    """One turn of OpenCode: the events that it prints. `provider`: its name in OpenCode's configuration. `options`: of
    the provider, such as `baseURL`."""
    program = _installed(OPENCODE, "opencode-linux-*/bin/opencode")
    spoken = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {model: {}}}
    named = f"{provider}/{model}"
    config = {"model": named, "small_model": named, "provider": {provider: spoken}, "share": "disabled"}
    (folder / "opencode.json").write_text(json.dumps(config))
    quiet = ("AUTOUPDATE", "MODELS_FETCH", "DEFAULT_PLUGINS", "SHARE")
    own = {f"OPENCODE_DISABLE_{name}": "1" for name in quiet} | {"OPENCODE_CONFIG": str(folder / "opencode.json")}
    told = _run([program, "run", "--format", "json", QUESTION], folder, own)
    return [json.loads(line) for line in told.split("\n") if line]
