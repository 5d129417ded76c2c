"""The progress of a long command: on a terminal only, after a second only, and gone at the end."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from proxy.cli import progress
from proxy.cli.progress import Progress
from tests.cli.commands import Commands
from tests.ledger.entries import an_entry
from tests.support.waiting import wait_until


class Terminal(io.StringIO):
    """Standard error that can be rewritten."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "48")
    monkeypatch.setattr(progress, "EVERY_S", 0.001)
    monkeypatch.setattr(progress, "AFTER_S", 0.0)


def as_stderr(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def drawn(text: str) -> list[str]:
    """What the line was, one after the other; the last is what is left of it."""
    return text.split("\r\x1b[K")


def test_a_line_is_rewritten_and_removed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal = as_stderr(monkeypatch)
    with Progress("copying", "rows", total=3000) as shown:
        assert list(shown.each(range(1200))) == list(range(1200))
        wait_until(lambda: "copying: 1,200 of 3,000 rows" in drawn(terminal.getvalue()), terminal.getvalue)
        shown.say("a month is done")
        shown.what, shown.total = "a name that is longer than a terminal can be wide", None
        wait_until(
            lambda: "a name that is longer than a terminal can be wi" in drawn(terminal.getvalue()), terminal.getvalue
        )
    assert drawn(terminal.getvalue())[-1] == ""
    assert capsys.readouterr().out == "a month is done\n"


def test_what_ends_within_a_second_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_stderr(monkeypatch)
    monkeypatch.setattr(progress, "AFTER_S", 60.0)
    with Progress("copying", "rows") as shown:
        shown.done = 9
    assert terminal.getvalue() == ""


def test_nothing_is_written_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    as_stderr(monkeypatch)
    monkeypatch.setenv("TERM", "dumb")
    with Progress("copying", "rows") as shown:
        assert not shown.is_shown
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with Progress("copying", "rows") as shown:
        assert not shown.is_shown


def test_an_error_removes_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_stderr(monkeypatch)
    with pytest.raises(ValueError), Progress("copying", "rows"):  # noqa: PT012
        wait_until(lambda: "copying: 0 rows" in terminal.getvalue(), terminal.getvalue)
        raise ValueError
    assert drawn(terminal.getvalue())[-1] == ""


@pytest.mark.io
@pytest.mark.parametrize(
    ("command", "line"),
    [
        (("backup", "copies"), "copying: 0 of 0 MB"),
        (("reconcile",), "checking dead letters: 17 of 18 checks"),
        (("export",), "exporting: 4 of 4 entries"),
        (("rerate", "--model", "tera-large", "--since", "2001-01-01"), "rerating: 4 exchanges"),
    ],
)
def test_the_commands_that_take_long_show_it(
    run: Commands,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: tuple[str, ...],
    line: str,
) -> None:
    terminal = as_stderr(monkeypatch)
    monkeypatch.chdir(tmp_path)
    run.settle(*(an_entry(number) for number in range(4)))
    ended = Progress.__exit__

    def drawn_last(self: Progress, *_: object) -> None:
        wait_until(lambda: line in drawn(terminal.getvalue()), self._line)
        ended(self)

    monkeypatch.setattr(Progress, "__exit__", drawn_last)
    run(*command, code=(0, 1))
    assert drawn(terminal.getvalue())[-1] == ""
