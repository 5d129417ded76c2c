"""`tokenweir ledger`: it explains each entry, and can be ended."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.billing.entries import LedgerEntry
from proxy.reports.entry_reader import EntryReader
from tests.cli.commands import Commands
from tests.ledger.entries import an_entry

pytestmark = pytest.mark.io

FLAGS_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "flags.md"


@pytest.fixture(autouse=True)
def impatient() -> Iterator[None]:
    """What goes on for ever is a failure, and no test that hangs."""
    before = signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGINT))
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_one_that_is_followed_ends_where_a_library_swallows_the_interrupt(
    run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def interrupted(_: EntryReader) -> list[LedgerEntry]:
        nonlocal looks
        looks += 1
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        return []

    monkeypatch.setattr(EntryReader, "new_entries", interrupted)
    run("ledger", "--follow")
    assert looks == 1


def test_a_long_one_ends_between_two_lines(run: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(_: EntryReader) -> Iterator[LedgerEntry]:
        for number in range(10**9):
            if number == 3:
                os.kill(os.getpid(), signal.SIGINT)
            yield an_entry(number)

    monkeypatch.setattr(EntryReader, "new_entries", endless)
    run("ledger", "--json", code=130)  # it is not whole
    assert len(run.out.splitlines()) == 4


def test_a_second_interrupt_waits_for_nothing(run: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(_: EntryReader) -> list[LedgerEntry]:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("it went on")

    monkeypatch.setattr(EntryReader, "new_entries", stuck)
    run("ledger", "--follow", code=130)


def explained(run: Commands, monkeypatch: pytest.MonkeyPatch, details: list[dict[str, Any]]) -> list[list[str]]:
    """The lines of `ledger --explain` below the table line of each entry."""
    entries = [replace(an_entry(number), details={"billed": "nothing"} | one) for number, one in enumerate(details)]
    monkeypatch.setattr(EntryReader, "new_entries", lambda _: iter(entries))
    run("ledger", "--explain")
    found: list[list[str]] = []
    for line in run.out.splitlines()[1:]:
        if line.startswith("    "):
            found[-1].append(line.strip())
        else:
            found.append([])
    return found


def test_each_flag_of_the_page_has_a_line_in_the_words_of_the_page(
    run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = FLAGS_PAGE.read_text().split("|---|---|---|\n")[1].split("\n\n")[0]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines()]
    expected = {flag: (seen, billed) for names, seen, billed in rows for flag in re.findall(r"`(\w+)`", names)}
    assert len(expected) > 35
    details: list[dict[str, Any]] = [{"flags": [flag]} for flag in expected]
    found = explained(run, monkeypatch, [*details, {"flags": [*expected]}])
    lines = [f"flag {flag}: {seen}; billed: {billed}" for flag, (seen, billed) in expected.items()]
    assert found == [*([line] for line in lines), lines]


def test_numbers_that_are_not_read_are_shown_with_their_values(run: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = {"new_tokens": 17, "by": {"depth": 2.5}, "details": [{"modality": "SMELL", "tokenCount": 9}], "mode": "x"}
    paths = ["usage.new_tokens", "usage.by.depth", "usage.details.SMELL.tokenCount"]
    paths += ["usage.mode=x", "x_groq.usage.gone"]
    entries: list[dict[str, Any]] = [
        {"flags": ["cumulative"], "unread": [*paths, "seconds", "..."], "usage": usage, "beside_usage": {"seconds": 3}},
        {"flags": ["of_another_version"], "unread": ["usage.a.b"], "usage": {"a": [1]}},
        {"flags": "odd"},
    ]
    first, second, third = explained(run, monkeypatch, entries)
    assert first[1:] == [
        "not read: usage.new_tokens = 17",
        "not read: usage.by.depth = 2.5",
        "not read: usage.details.SMELL.tokenCount = 9",
        "not read: usage.mode=x",
        "not read: x_groq.usage.gone",
        "not read: seconds = 3",
        "not read: ...",
    ]
    assert second == ["flag of_another_version", "not read: usage.a.b"]
    assert third == []


def in_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))


@pytest.mark.parametrize("columns", [60, 80, 100, 120, 160])
def test_a_table_fits_the_terminal(run: Commands, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    run.settle(an_entry(1), an_entry(2))
    in_a_terminal(monkeypatch, columns)
    run("ledger")
    first, *lines = run.out.splitlines()
    assert first.startswith("TIME (UTC)")
    assert "CHARGE USD" in first
    assert len(first) <= max(columns, 61)
    assert all(len(line) <= columns for line in lines) or columns >= 120, "the last column says why, in full"
    run("ledger", "--wide")
    assert {"EXCHANGE", "PROVIDER", "COST"} <= set(run.out.splitlines()[0].split())


def test_columns_are_chosen_by_name(run: Commands) -> None:
    one = an_entry(1)
    run.settle(one)
    run("ledger", "--columns", "exchange, Charge")
    header, line = run.out.splitlines()
    assert header.split() == ["EXCHANGE", "CHARGE", "USD"]
    assert line.startswith(one.exchange_id)
    assert "there is no column 'colour': must be of exchange, time, " in run.refused("ledger", "--columns", "colour")


def test_the_last_entries_alone(run: Commands) -> None:
    run.settle(*(an_entry(number) for number in range(5)))
    listed = [one["exchange_id"] for one in run("ledger", "--json")]
    assert [one["exchange_id"] for one in run("ledger", "--json", "--limit", "2")] == listed[-2:]
    for wrong in ("0", "-1"):
        assert "--limit: must be a whole number, 1 or more" in run.refused("ledger", f"--limit={wrong}")


def test_the_unknown_cost_of_an_attempt_is_named_beside_the_entry(run: Commands) -> None:
    failed = {"provider": "first", "upstream_model": "m", "failed": "stalled", "started_at": 1.0, "duration_ms": 1.0}
    details = {"billed": "nothing", "attempts": [{**failed, "status": 504}, {**failed, "status": 429}]}
    one = replace(an_entry(1), details=details, cost_nusd=0)
    run.settle(one)
    run("ledger", "--columns", "cost,why")
    terminal = next(line for line in run.out.splitlines() if line.endswith("; cost of the attempt at first unknown"))
    assert terminal.startswith("      0 + unknown  ")
    run("exchange", one.exchange_id)
    assert "\ncost        0 USD, and an unknown cost of the attempt at first\n" in run.out
    run("adjust", one.exchange_id, "--reason", "r", "--cost-usd", "1")
    run("exchange", one.exchange_id)
    assert "USD, cost 1 USD, and an unknown cost of the attempt at first\n" in run.out


def test_one_exchange_is_shown_whole(run: Commands) -> None:
    one = an_entry(1)
    run.settle(one, an_entry(2))
    run("adjust", one.exchange_id, "--reason", "a goodwill", "--charge-usd", "0")
    assert [entry["kind"] for entry in run("exchange", one.exchange_id, "--json")] == ["usage", "adjustment"]
    run("exchange", one.exchange_id)
    text = run.out
    for words in (
        one.exchange_id,
        one.key_alias,
        one.model,
        one.provider,
        "a goodwill",
        "total       0 USD",
        "details",
    ):
        assert words in text
    assert "the ledger has no such exchange" in run.refused("exchange", "nothing")
