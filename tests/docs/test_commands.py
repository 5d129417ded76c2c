"""The command lines of README and docs/: each can be parsed as it is written, and those that need only a ledger run."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from proxy.cli import COMMANDS, _parser, main
from tests.cli.commands import CONFIG
from tests.support.sqlite import with_empty_ledger

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("deploy/**/*.md"))]
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`tokenweir ([^`]+)`")
# What is not run here, and why: the first words of a command.
NOT_RUN = {
    "serve": "serves until it is stopped",
    "worker": "needs Redis, and works until it is stopped",
    "demo": "serves until it is stopped; tests/demo",
    "migrate": "needs Postgres; tests/ledger/schema",
    "reconcile": "needs an account at a provider; tests/cli/test_provider_pull.py",
    "conformance": "needs a gateway; tests/conformance",
    "doctor": "is run in a container",
}
# These pages begin without a configuration file; the README is run whole by test_quick_start.py.
WITHOUT_FILE = {"quick-start.md", "move-from-litellm.md"}
LITELLM = "model_list: [{model_name: m, litellm_params: {model: openai/gpt-4.1, api_key: os.environ/OPENAI_API_KEY}}]\n"


def commands_of(page: Path) -> list[list[str]]:
    """The words of each `tokenweir …` in the code blocks, without what the shell does with it."""
    found = []
    blocks = BLOCK.findall(page.read_text())
    for block in (text for language, text in blocks if language in ("", "sh", "bash", "console")):
        for line in filter(re.compile(r"\btokenweir ").search, block.replace("\\\n", " ").splitlines()):
            words = shlex.shlex(line, posix=True, punctuation_chars=True)
            words.whitespace_split = True
            typed: list[str] | None = None
            for word in [*words, ";"]:
                if typed is not None and set(word) <= set(";&|<>()"):
                    found.append(typed)
                    typed = None
                elif typed is not None:
                    typed.append(word)
                elif re.fullmatch(r"(?:.*/bin/)?tokenweir", word):
                    typed = []
    return [typed for typed in found if typed and typed[0] in COMMANDS]


def written() -> Iterator[tuple[Path, list[str]]]:
    for page in PAGES:
        for typed in commands_of(page):
            yield page, typed


@cache
def help_of(words: tuple[str, ...]) -> str:
    """The help of a command, or of its subcommand."""
    parser = _parser(words)
    for word in words:
        choices = {} if parser.commands is None else parser.commands.choices  # type: ignore[attr-defined]
        parser = choices.get(word, parser)
    return str(parser.format_help())


def test_the_lines_are_found() -> None:
    found = [" ".join(typed) for _, typed in written()]
    assert len(found) >= 30
    assert "keys create --alias bob --prepaid" in found
    assert "keys create --config examples/tokenweir.yaml --alias alice --quiet" in found
    assert "init --from-litellm config.yaml" in found


@pytest.mark.parametrize(
    ("page", "typed"), list(written()), ids=lambda one: " ".join(one) if isinstance(one, list) else one.name
)
def test_a_command_line_of_the_docs_can_be_parsed(page: Path, typed: list[str]) -> None:
    _parser(typed).parse_args(typed, argparse.Namespace())


def test_a_command_in_a_sentence_has_the_options_that_it_names() -> None:
    wrong = []
    for page in PAGES:
        for text in INLINE.findall(page.read_text()):
            words = text.replace("\\|", "|").split()
            if words[0] not in COMMANDS:
                wrong += [f"{page.name}: {text}"] if re.fullmatch(r"[a-z-]+", words[0]) else []
                continue
            known = help_of(tuple(words[:2]))
            options = re.findall(r"--[a-z][\w-]*", text)
            wrong += [f"{page.name}: {text}: {one}" for one in options if one not in known and one != "--help"]
    assert wrong == []


@pytest.mark.io
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "README.md" and commands_of(page)], ids=lambda page: page.name
)
def test_the_commands_of_a_page_run_in_their_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOKENWEIR_CONFIG", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    Path("config.yaml").write_text(LITELLM)
    if page.name not in WITHOUT_FILE:
        Path("tokenweir.yaml").write_text(yaml.safe_dump(CONFIG))
    with_empty_ledger(tmp_path / "data")
    for typed in commands_of(page):
        if typed[0] not in NOT_RUN:
            assert main(typed) == 0, (typed, capsys.readouterr().err)
