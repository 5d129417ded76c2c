"""`tokenweir completion`: real shells complete commands, options, choices and files by its script."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from proxy.cli import main
from proxy.cli.completion import SHELLS
from tests.support.waiting import wait_until

pytestmark = pytest.mark.process

# What was typed before the tabulator → the only way on.
TYPED = {
    "tokenweir ke": "keys",
    "tokenweir keys cre": "create",
    "tokenweir keys create --ali": "--alias",
    "tokenweir serve --log-format js": "json",
    "tokenweir completion fi": "fish",
    "tokenweir verify a-stat": "a-statement.json",
    "tokenweir ledger --config tok": "tokenweir.yaml",
}
BASH = """
. ./script
COMP_WORDS=($1); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_shtab_tokenweir 2>/dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
PS1='' fpath=($PWD/functions $fpath)
autoload -U compinit && compinit -u -d ./dump
tokenweir() { print -r -- "$*" > ran }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a-statement.json", "tokenweir.yaml"):
        (tmp_path / name).touch()
    return tmp_path


def script(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    (folder / "script").write_text(capsys.readouterr().out)


def by_bash(typed: str, folder: Path) -> str:
    command = ["bash", "-c", BASH, "bash", typed]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def by_fish(typed: str, folder: Path) -> str:
    command = ["fish", "--no-config", "-c", "source ./script; complete -C $argv[1]", typed]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    return found.partition("\t")[0].strip()


def by_zsh(typed: str, folder: Path) -> str:
    """zsh completes in its line editor alone, which needs a terminal."""
    (folder / "start").write_text(ZSH)
    (folder / "functions").mkdir(exist_ok=True)
    shutil.copy(folder / "script", folder / "functions" / "_tokenweir")
    ran = folder / "ran"
    ran.unlink(missing_ok=True)
    main_end, shell_end = pty.openpty()
    shell = subprocess.Popen(
        ["zsh", "-f", "-i"],
        cwd=folder, stdin=shell_end, stdout=shell_end, stderr=shell_end, start_new_session=True,
    )  # fmt: skip
    os.close(shell_end)
    os.set_blocking(main_end, False)
    try:
        os.write(main_end, f"source ./start\n{typed}\t\n".encode())

        def has_run() -> bool:
            with suppress(BlockingIOError):
                os.read(main_end, 65_536)  # a full terminal would stop the shell
            return ran.exists() and ran.read_text().endswith("\n")

        wait_until(has_run)
        return ran.read_text().split()[-1]
    finally:
        shell.kill()
        shell.wait()
        os.close(main_end)


def needs(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not on this machine")


@pytest.mark.parametrize(
    ("shell", "complete"),
    [
        pytest.param("bash", by_bash, id="bash"),
        pytest.param("zsh", by_zsh, id="zsh", marks=pytest.mark.external),
        pytest.param("fish", by_fish, id="fish", marks=pytest.mark.external),
    ],
)
def test_a_shell_completes(
    shell: str, complete: Callable[[str, Path], str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs(shell)
    script(shell, folder, capsys)
    assert {typed: complete(typed, folder) for typed in TYPED} == TYPED


def test_the_shells_are_those_of_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
    assert f"tokenweir completion {{{','.join(SHELLS)}}}" in page
