"""The lines of the docs that need a running server, each typed into bash as it is written.

test_commands.py runs those that need only a ledger, test_quick_start.py the README. Only addresses are changed here:
those of the provider, of Redis and of Postgres, and the port.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from tests.docs.lines import BLOCK, LITELLM, NOT_RUN, ROOT, written
from tests.docs.shell import explained, pasting
from tests.support.net import free_port
from tests.support.postgres import Server
from tests.support.provider import ScriptedProvider
from tests.support.tokenweir import provider_section
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.thorough]  # each serves, or needs a server

LINE_S_MAX, READY_S_MAX = 60.0, 30.0
PEPPER = "5e" * 32
# Every line of a command that test_commands.py does not run: it runs here, or elsewhere, or needs what no test has.
LINES = {
    "README.md: serve": "test_quick_start.py",
    "README.md: doctor": "in a container: tests/deploy/test_compose.py",
    "quick-start.md: demo": "tests/demo",
    "quick-start.md: serve": "here",
    "move-from-litellm.md: serve": "here",
    "move-from-sqlite-to-postgres.md: migrate": "here",
    "use-several-machines.md: migrate": "here",
    "use-several-machines.md: worker": "here",
    "use-several-machines.md: serve": "here",
    "running.md: serve": "here",
    "month-end.md: reconcile": "without options: tests/reconciliation/test_reconcile.py",
    "compare-with-a-provider-bill.md: reconcile": "an account at a provider: tests/cli/test_provider_pull.py",
    "test-a-gateway.md: conformance": "the reader's gateway and script: tests/conformance",
    "security.md: erase": "an end user that a client has sent: tests/cli/test_erase.py",
}


class Terminal:
    """Runs one line after the other; what serves goes on until the end."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        home = folder / "home"
        home.mkdir()
        programs = Path(sys.executable).parent
        self._environment = {
            "HOME": str(home),
            "PATH": f"{programs}:{os.defpath}",
            "TEST_PROVIDER_KEY": "sk-x",
            **environment,
        }
        self._serving: list[subprocess.Popen[bytes]] = []
        self.output = folder / "printed"

    def run(self, line: str) -> None:
        """Run a line that ends: its exit code is 0."""
        shell = self._started(line)
        assert shell.wait(LINE_S_MAX) == 0, (line, self.output.read_text())

    def serve(self, line: str) -> subprocess.Popen[bytes]:
        self._serving.append(self._started(f"exec {line}"))
        return self._serving[-1]

    def end(self) -> list[int]:
        """Send SIGTERM to what serves: the exit codes."""
        for one in self._serving:
            one.send_signal(signal.SIGTERM)
        return [one.wait(LINE_S_MAX) for one in self._serving]

    def kill(self) -> None:
        for one in self._serving:
            one.kill()
            one.wait()

    def _started(self, line: str) -> subprocess.Popen[bytes]:
        with self.output.open("ab") as output:
            return subprocess.Popen(
                ["bash", "-c", line], cwd=self.folder, env=self._environment,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def make(**environment: str) -> Terminal:
        opened.append(Terminal(tmp_path, environment))
        return opened[-1]

    yield make
    for one in opened:
        one.kill()


def lines_of(page: str, first: str) -> list[str]:
    """The lines of the block of a page that begins so, without prompts and what a command printed."""
    [block] = [text for _, text in BLOCK.findall((ROOT / "docs" / page).read_text()) if text.strip().startswith(first)]
    lines = [line.strip() for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if re.match(r"(\$ )?(tokenweir|mkdir) ", line)]


def configured(folder: Path, **sections: Any) -> int:
    """Write a configuration with a free port."""
    port = free_port()
    document = {"listen": {"port": port}, "models": {"*": {"provider": "scripted"}}, **sections}
    (folder / "tokenweir.yaml").write_text(yaml.safe_dump(document))
    return port


def ready(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def until_ready(terminal: Terminal, port: int) -> None:
    wait_until(lambda: ready(port), terminal.output.read_text, within_s=READY_S_MAX)


def test_every_line_is_run_by_a_test_or_is_an_exception() -> None:
    assert {f"{page.name}: {typed[0]}" for page, typed in written() if typed[0] in NOT_RUN} == set(LINES)


def test_the_quick_start_with_ones_own_provider(tmp_path: Path, provider: ScriptedProvider) -> None:
    [block] = [text for _, text in BLOCK.findall((ROOT / "docs/getting-started/quick-start.md").read_text())
               if "tokenweir init" in text]  # fmt: skip
    port = free_port()
    addresses = (
        f"sed -i 's|https://api.openai.com/v1|{provider.base_url}|; s|port: 8080|port: {port}|' tokenweir.yaml\n"
    )
    block = block.replace("sk-…", "sk-x").replace("8080", str(port))
    before, init, after = re.split(r"^(tokenweir init.*\n)", block, flags=re.MULTILINE)
    (tmp_path / ".venv").symlink_to(sys.prefix, target_is_directory=True)
    with pasting(before + init + addresses + after, tmp_path, tmp_path, LINE_S_MAX) as out:
        assert "data: [DONE]" in out, out
        assert "alice" in "\n".join(explained(out)), out


def test_the_move_from_litellm(terminal: Callable[..., Terminal]) -> None:
    typed = terminal(OPENAI_API_KEY="sk-x")
    (typed.folder / "config.yaml").write_text(LITELLM)
    *first, serve = lines_of("how-to/move-from-litellm.md", "tokenweir init")
    for line in first:
        typed.run(line)
    port = free_port()
    document = yaml.safe_load((typed.folder / "tokenweir.yaml").read_text())
    (typed.folder / "tokenweir.yaml").write_text(yaml.safe_dump({**document, "listen": {"port": port}}))
    typed.serve(serve)
    until_ready(typed, port)
    assert typed.end() == [0]


def test_the_move_from_sqlite_to_postgres(
    terminal: Callable[..., Terminal], postgres: Server, provider: ScriptedProvider
) -> None:
    typed = terminal()
    configured(typed.folder, providers={"scripted": provider_section(provider.base_url)})
    typed.run("tokenweir keys create --alias alice")
    [line] = lines_of("how-to/move-from-sqlite-to-postgres.md", "tokenweir migrate")
    url = postgres.url(postgres.new_database())
    typed.run(line.replace("postgresql://tokenweir@db.example/tokenweir", url))
    assert [row[0] for row in postgres.execute("SELECT alias FROM api_keys", database=url.rpartition("/")[2])] == [
        "alice"
    ]


def test_several_machines(
    terminal: Callable[..., Terminal], postgres: Server, valkey: Valkey, provider: ScriptedProvider
) -> None:
    urls = {"REDIS_URL": valkey.url, "DATABASE_URL": postgres.url(postgres.new_database())}
    typed = terminal(**urls, TOKENWEIR_PEPPER=PEPPER)
    [document] = [
        yaml.safe_load(text)
        for _, text in BLOCK.findall((ROOT / "docs/how-to/use-several-machines.md").read_text())
        if text.startswith("# tokenweir.yaml, the same on every machine")
    ]
    providers = {"scripted": provider_section(provider.base_url)}
    sections = document | {"providers": providers, "models": {"*": {"provider": "scripted"}}}
    port = configured(typed.folder, **sections)
    migrate, worker, serve = lines_of("how-to/use-several-machines.md", "tokenweir migrate")
    typed.run(migrate)
    typed.serve(worker)
    typed.serve(serve)
    until_ready(typed, port)
    assert typed.end() == [0, 0]


def test_an_upgrade_without_a_pause(terminal: Callable[..., Terminal], provider: ScriptedProvider) -> None:
    typed = terminal()
    port = configured(typed.folder, providers={"scripted": provider_section(provider.base_url)})
    old = typed.serve("tokenweir serve")
    until_ready(typed, port)
    [line] = lines_of("operations/running.md", "$ tokenweir serve --take-over")
    typed.serve(line)
    assert old.wait(LINE_S_MAX) == 0
    until_ready(typed, port)
    assert f"process {old.pid} finishes its exchanges, and ends" in typed.output.read_text()
    assert typed.end() == [0, 0]


def test_completion_is_written_where_the_shells_look(terminal: Callable[..., Terminal]) -> None:
    typed = terminal()
    lines = lines_of("reference/cli.md", "mkdir -p ~/.local")
    assert len(lines) == 4
    for line in lines:
        typed.run(line)
    for file in (".local/share/bash-completion/completions/tokenweir", ".zfunc/_tokenweir"):
        assert "take-over" in (typed.folder / "home" / file).read_text()
