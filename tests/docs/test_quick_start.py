"""The README's quick start, pasted whole into bash in a fresh folder with an empty home.

The block runs as it stands there, but for its three ports, which others may have here, and for `make install`: a `make`
of this test records that it was called, and .venv is the environment that the tests have. The long run below does
install.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from proxy.settings import load
from tests.docs.shell import explained, pasting
from tests.support.net import free_port

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "README.md").read_text().split("## Quick start\n")[1].split("\n## ")[0]
BLOCK = SECTION.split("```sh\n")[1].split("```")[0]
PRINTED = SECTION.split("```text\n")[1].split("```")[0]
PROXY, CONSOLE, PROVIDER = 8080, 8090, 8091
TALE = "A weir does not stop the river; it only asks how much of it goes by. Every drop is counted, none"
# The block takes four seconds; a loaded machine ten times as long.
PASTE_S_MAX = 120.0
INSTALL_S_MAX = 600.0


@dataclass(frozen=True)
class Pasted:
    """What the block left."""

    output: str
    folder: Path
    environment: dict[str, str]
    """for clients of the proxy that still runs"""


@pytest.fixture(scope="module")
def pasted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pasted]:
    """The proxy and the provider that the block started go on until the end of the module."""
    folder = tmp_path_factory.mktemp("quick-start")
    ports, block = prepared(folder)
    with pasting(block, folder, folder / "bin", PASTE_S_MAX) as output:
        key = re.search(r"key: (\S+)", output)
        url = f"http://127.0.0.1:{ports[PROXY]}/v1"
        yield Pasted(output, folder, {"KEY": key[1] if key else "", "TOKENWEIR_URL": url, "PATH": os.defpath})


def prepared(folder: Path) -> tuple[dict[int, int], str]:
    """A folder to paste the block in: the ports instead of those of the README, and the block with them."""
    ignored = shutil.ignore_patterns("data")
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=ignored)
    (folder / ".venv").symlink_to(sys.prefix, target_is_directory=True)
    programs = folder / "bin"
    programs.mkdir()
    (programs / "make").write_text('#!/bin/sh\necho "$*" >>called\n')
    (programs / "make").chmod(0o755)
    ports = {port: free_port() for port in (PROXY, CONSOLE, PROVIDER)}
    config = folder / "examples" / "tokenweir.yaml"
    text = f"listen: {{port: {ports[PROXY]}}}\n{config.read_text()}"
    config.write_text(text.replace("admin:\n", f"admin:\n  port: {ports[CONSOLE]}\n"))
    return ports, re.sub(r"\b80[89]\d\b", lambda port: str(ports[int(port[0])]), BLOCK)


def test_it_installs_and_uses_the_ports_that_are_the_defaults() -> None:
    assert BLOCK.startswith("make install && . .venv/bin/activate\n")
    names = ("PROVIDER_URL", "PROVIDER_KEY", "TOKENWEIR_ADMIN_SECRET")
    settings = load(ROOT / "examples" / "tokenweir.yaml", dict.fromkeys(names, "https://a-text-of-32-characters.test"))
    assert (settings.listen.port, settings.admin.port) == (PROXY, CONSOLE)


@pytest.mark.process
@pytest.mark.thorough
def test_pasted_whole_it_streams_and_explains(pasted: Pasted) -> None:
    assert (pasted.folder / "called").read_text() == "install\n"
    assert "curl:" not in pasted.output, pasted.output
    assert "data: [DONE]" in pasted.output
    assert "".join(re.findall(r'"delta":\{"content":"([^"]*)"', pasted.output)) == TALE
    entry = pasted.output[pasted.output.index("TIME (UTC)") :].split("key: ")[0]
    assert explained(entry) == explained(PRINTED)


@pytest.mark.process
@pytest.mark.thorough
def test_pasted_twice_it_streams_twice(tmp_path: Path) -> None:
    """What runs already says so in a line; the key and the secret stay."""
    ports, block = prepared(tmp_path)
    with pasting(block * 2, tmp_path, tmp_path / "bin", PASTE_S_MAX) as output:
        assert output.count("data: [DONE]") == 2, output
        assert len(set(re.findall(r"key: .*", output))) == 1
        assert f"cannot listen on 127.0.0.1:{ports[PROVIDER]}: Address already in use" in output
        assert "Traceback" not in output


@pytest.mark.process
@pytest.mark.thorough
def test_pasted_again_in_another_shell_it_streams_with_a_new_secret(tmp_path: Path) -> None:
    """That shell has no variables of the first one, and the key exists."""
    _, block = prepared(tmp_path)
    other = "kill %1 %2; wait; unset KEY TOKENWEIR_ADMIN_SECRET\n"
    with pasting(f"{block}{other}{block}", tmp_path, tmp_path / "bin", PASTE_S_MAX) as output:
        assert output.count("data: [DONE]") == 2, output
        assert len(set(re.findall(r"key: (tw-\S+)", output))) == 2
        assert "Traceback" not in output


@pytest.mark.process
@pytest.mark.thorough
@pytest.mark.parametrize(
    "client",
    [["sh", "stream.sh"], pytest.param([sys.executable, "stream.py"], marks=pytest.mark.slow)],
    ids=["sh", "py"],
)
def test_the_clients_of_examples_stream(pasted: Pasted, client: list[str]) -> None:
    run = subprocess.run(
        [*client[:-1], str(ROOT / "examples" / client[-1])],
        env=pasted.environment, cwd=pasted.folder, capture_output=True, text=True, timeout=PASTE_S_MAX, check=True,
    )  # fmt: skip
    said = "".join(re.findall(r'"delta":\{"content":"([^"]*)"', run.stdout)) or run.stdout
    assert said == TALE


@pytest.mark.slow
def test_from_a_clone_with_nothing_installed(tmp_path: Path) -> None:
    """With the ports and the `make install` of the README; needs a package index."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True, timeout=60)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to(Path(sys.executable).resolve())
    with pasting(BLOCK, clone, programs, INSTALL_S_MAX) as output:
        assert "data: [DONE]" in output
        assert "9 input × 0.15 per million" in output
