"""The command lines of README and docs/: each can be parsed as it is written, and those that need only a ledger run."""

from __future__ import annotations

import argparse
import re
from functools import cache
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from proxy.cli import COMMANDS, _parser, main
from proxy.keys.narrowing import narrowable
from proxy.metering.usage import Usage
from proxy.storage.database import open_engine, sqlite_url
from tests.cli.commands import CONFIG
from tests.docs import cli_reference
from tests.docs.lines import BLOCK, LITELLM, NOT_RUN, PAGES, commands_of, written
from tests.ledger.priced_entries import a_real_entry, settle
from tests.support.sqlite import with_empty_ledger

EXCHANGE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
INLINE = re.compile(r"`tokenweir ([^`]+)`")
# These pages begin without a configuration file; the README is run whole by test_quick_start.py.
# A block of such a language is the file that the commands of its page name.
FILES = {"csv": "usage.csv", "jsonl": "logs.jsonl"}
WITHOUT_FILE = {"quick-start.md", "move-from-litellm.md"}


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


def test_the_reference_is_what_the_parsers_say() -> None:
    assert cli_reference.PAGE.read_text() == cli_reference.page(), "run: python -m tests.docs.cli_reference"
    known = cli_reference.every()
    assert {one.split()[0] for one in known} == {name for names in cli_reference.GROUPS.values() for name in names}
    assert {*cli_reference.NOTES, *cli_reference.EXAMPLES} - known.keys() == set()


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


def _settle_named(page: Path, data_dir: Path) -> None:
    """Settle an exchange of each id that the page's commands name."""
    if ids := {word for typed in commands_of(page) for word in typed if EXCHANGE.fullmatch(word)}:
        usage = Usage(1_200, 400, 350, None, 1_550)
        engine = open_engine(sqlite_url(data_dir / "ledger.db"))
        settle(engine, *(replace(a_real_entry(1, usage=usage), exchange_id=one) for one in sorted(ids)))
        engine.dispose()


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
    monkeypatch.setenv("TOKENWEIR_KEY", narrowable("key_5f0c", b"digest", b"pepper"))
    Path("config.yaml").write_text(LITELLM)
    if page.name not in WITHOUT_FILE:
        Path("tokenweir.yaml").write_text(yaml.safe_dump(CONFIG))
    for language, text in BLOCK.findall(page.read_text()):
        if language in FILES:
            Path(FILES[language]).write_text(text)
    with_empty_ledger(tmp_path / "data")
    _settle_named(page, tmp_path / "data")
    for typed in commands_of(page):
        if typed[0] not in NOT_RUN:
            assert main(typed) == 0, (typed, capsys.readouterr().err)
