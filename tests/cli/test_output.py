"""What commands print: tables that fit a terminal, JSON lines and ids for programs, colour on a terminal alone."""

from __future__ import annotations

import json
import re

import pytest

from proxy.cli.output import has_colour, painted
from tests.cli.commands import Commands, on_a_terminal
from tests.ledger.entries import an_entry

pytestmark = pytest.mark.io

LISTS = {
    ("keys", "list"): "ALIAS",
    ("accounts", "list"): "NAME",
    ("periods", "list"): "MONTH",
    ("budgets", "show"): "SCOPE",
    ("audit",): "TIME (UTC)",
    ("ledger",): "TIME (UTC)",
}
ESCAPES = re.compile(r"\x1b\[\d*m")


@pytest.fixture
def filled(run: Commands) -> Commands:
    run("keys", "create", "--alias", "a" * 60, "--budget", "5", "--model", "one", "--model", "two")
    run("keys", "create", "--alias", "web")
    run("keys", "revoke", "web")
    run("periods", "close", "2020-01")
    run.settle(an_entry(1), an_entry(2, outcome="upstream_failed"))
    return run


@pytest.mark.parametrize("command", LISTS, ids=" ".join)
def test_every_list_fits_the_terminal(
    filled: Commands, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    for columns in (60, 80, 132, 200):
        on_a_terminal(monkeypatch, columns)
        filled(*command)
        lines = ESCAPES.sub("", filled.out).splitlines()
        assert lines[0].startswith(LISTS[command])
        assert max(map(len, lines)) <= columns
    on_a_terminal(monkeypatch, 60)
    filled(*command, "--wide")
    assert len(filled.out.splitlines()[0]) > 60
    assert command != ("keys", "list") or f"{'a' * 60}  key_" in ESCAPES.sub("", filled.out), "in full"
    assert filled(*command, "--json")[:1] != [] or command == ("budgets", "show")


def test_lists_are_json_lines_without_a_terminal_and_ids_alone_for_scripts(filled: Commands) -> None:
    keys, accounts = filled("keys", "list"), filled("accounts", "list")
    assert [key["alias"] for key in keys] == ["a" * 60, "web"]
    filled("keys", "list", "--quiet")
    assert filled.out.split() == [key["key_id"] for key in keys]
    filled("accounts", "list", "--quiet")
    assert filled.out.split() == [account["account_id"] for account in accounts]


@pytest.mark.parametrize(
    ("terminal", "environment", "colour"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (True, {"TERM": "dumb"}, False),
        (True, {"NO_COLOR": ""}, True),
    ],
)
def test_where_there_is_colour(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, environment: dict[str, str], colour: bool
) -> None:
    on_a_terminal(monkeypatch)
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert has_colour() == colour
    assert painted("no", "error") == ("\x1b[31mno\x1b[0m" if colour else "no")


def test_what_is_wrong_is_red(filled: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    filled("ledger")
    filled("keys", "list")
    assert "\x1b" not in filled.out
    on_a_terminal(monkeypatch, 120)
    filled("ledger")
    assert "\x1b[31mupstream_failed " in filled.out
    filled("keys", "list")
    assert "\x1b[31mrevoked\x1b[0m" in filled.out
    filled("reconcile", code=(0, 1))
    assert "\x1b[32mok" in filled.out
    filled("config", "check", code=(0, 1))
    assert re.search("\x1b\\[3[123]m[✓!✗]\x1b\\[0m", filled.out)
    filled("doctor", "--json", code=(0, 1))
    assert "\x1b" not in filled.out
    assert json.loads(filled.out.splitlines()[0])


def test_an_id_alone_for_scripts(run: Commands) -> None:
    run("accounts", "create-organization", "acme", "--quiet")
    organization = run.out.strip()
    [project] = run("accounts", "create-project", "web", "--organization", organization, "--json")
    assert project["parent_id"] == organization
    run("credit", "add", "--account", "web", "--usd", "1", "--reason", "r", "--quiet")
    assert run.out.strip() == run("ledger", "--json")[0]["entry_id"]


def test_one_object_is_lines_on_a_terminal(run: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    run("keys", "create", "--alias", "plain", "--rpm", "5", "--tag", "a", "--tag", "b")
    on_a_terminal(monkeypatch)
    run("keys", "create", "--alias", "web", "--rpm", "5", "--tag", "a", "--tag", "b")
    lines = run.out.splitlines()
    assert lines[0].startswith("key:          ")
    assert [line for line in lines if line.startswith(("alias", "limits.rpm", "tags", "revoked_at"))] == [
        "alias:        web", "limits.rpm:   5", "tags:         a, b"
    ]  # fmt: skip
    assert max(map(len, lines)) <= 80
    for typed in (("info",), ("rotate",), ("block",), ("unblock",), ("update", "--rpm", "7"), ("revoke",)):
        for web in ("web", "plain"):
            run("keys", typed[0], web, *typed[1:], *(["--json"] if web == "plain" else []))
            assert run.out.startswith("{") == (web == "plain"), typed
    run("accounts", "create-organization", "acme")
    assert run.out.startswith("account_id: org")
    run("accounts", "create-project", "web", "--organization", "acme", "--quiet")
    assert run.out.startswith("proj")
    run("credit", "add", "--account", "acme", "--usd", "5", "--reason", "paid")
    assert "\ncharge_usd: " in run.out
