"""`tokenweir ledger`: it can be ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from proxy.billing.entries import LedgerEntry
from proxy.cli import main
from proxy.reports.entry_reader import EntryReader
from tests.cli.commands import CONFIG
from tests.ledger.making import an_entry


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "tokenweir.yaml"
    file.write_text(yaml.safe_dump(CONFIG))
    assert main(["keys", "create", "--alias", "anna", "--config", str(file)]) == 0
    return str(file)


@pytest.fixture
def impatient() -> Iterator[None]:
    """What goes on for ever is a failure, and no test that hangs."""
    before = signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGINT))
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_one_that_is_followed_ends_where_a_library_swallows_the_interrupt(
    config: str, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def interrupted(_: EntryReader) -> list[LedgerEntry]:
        nonlocal looks
        looks += 1
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        return []

    monkeypatch.setattr(EntryReader, "new_entries", interrupted)
    assert main(["ledger", "--follow", "--config", config]) == 0
    assert looks == 1


def test_a_long_one_ends_between_two_lines(
    config: str, impatient: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def endless(_: EntryReader) -> Iterator[LedgerEntry]:
        for number in range(10**9):
            if number == 3:
                os.kill(os.getpid(), signal.SIGINT)
            yield an_entry(number)

    monkeypatch.setattr(EntryReader, "new_entries", endless)
    capsys.readouterr()
    assert main(["ledger", "--json", "--config", config]) == 130, "it is not whole"
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_a_second_interrupt_waits_for_nothing(config: str, impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(_: EntryReader) -> list[LedgerEntry]:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("it went on")

    monkeypatch.setattr(EntryReader, "new_entries", stuck)
    assert main(["ledger", "--follow", "--config", config]) == 130
