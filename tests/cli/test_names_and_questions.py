"""A name that does not exist is an error; what cannot be undone is asked about; a command that reads makes nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from proxy.cli import main
from tests.cli.commands import CONFIG, Commands, Terminal

pytestmark = pytest.mark.io


def test_a_name_that_does_not_exist_is_an_error(run: Commands) -> None:
    run("keys", "create", "--alias", "web")
    assert "nobody" in run.refused("ledger", "--key", "nobody")
    assert "'none'" in run.refused("ledger", "--model", "none")
    assert run("ledger", "--json", "--key", "web", "--model", "tera-large") == []
    assert "2999-01 has not begun" in run.refused("statement", "--key", "web", "--month", "2999-01")


@pytest.mark.parametrize(
    ("typed", "options", "revoked"),
    [
        ("n\n", (), False),
        ("", (), False),
        ("\n", (), False),
        ("y\n", (), True),
        ("YES\n", (), True),
        ("", ("--yes",), True),
    ],
)
def test_what_cannot_be_undone_is_asked_about(
    run: Commands, monkeypatch: pytest.MonkeyPatch, typed: str, options: tuple[str, ...], revoked: bool
) -> None:
    run("keys", "create", "--alias", "web")
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    run("keys", "revoke", "web", *options, code=0 if revoked else 1)
    assert ("Revoke the key web? This cannot be undone. [y/N]" in run.err) == (not options)
    assert revoked or "nothing was changed" in run.err
    [key] = run("keys", "list")
    assert (key["revoked_at"] is not None) == revoked


def test_without_a_terminal_and_without_input_the_answer_is_yes(run: Commands) -> None:
    run("keys", "create", "--alias", "web")
    run("keys", "revoke", "web")
    assert run.err == "Revoke the key web? This cannot be undone. [y/N] yes, without any input\n"


def test_a_key_that_does_not_exist_is_not_asked_about(run: Commands) -> None:
    assert "[y/N]" not in run.refused("keys", "revoke", "nobody")


def test_a_month_is_closed_after_a_question(run: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("no\n"))
    assert "Close 2020-01 and every open month before it? This cannot be undone. [y/N]" in run.refused(
        "periods", "close", "2020-01"
    )
    assert run("periods", "list") == []
    run("periods", "close", "2020-01", "--yes")
    assert [one["month"] for one in run("periods", "list")] == ["2020-01"]


def test_to_read_creates_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "tokenweir.yaml"
    config.write_text(yaml.safe_dump(CONFIG))
    for command in (["keys", "list"], ["ledger"], ["audit"], ["reconcile"], ["periods", "list"], ["export"]):
        assert main([*command, "--config", str(config)]) == 1, command
        said = capsys.readouterr().err
        assert "ledger.db: there is no ledger yet" in said, said
    assert [path.name for path in tmp_path.iterdir()] == ["tokenweir.yaml"]
