"""`tokenweir audit`: every command that changes something is there, and none that only looks."""

from __future__ import annotations

import getpass
import re

import pytest

from tests.cli.commands import Commands

pytestmark = pytest.mark.io


def test_what_was_done_and_tried_is_there_and_what_was_looked_at_is_not(run: Commands) -> None:
    (made,) = run("keys", "create", "--alias", "anna", "--budget", "5")
    run("keys", "list")
    run("keys", "block", "nobody", code=3)
    run("accounts", "update", "proj_default", "--rpm", "9")
    run("credit", "add", "--key", "anna", "--usd", "5", "--reason", "paid")
    run("adjust", "x", "--reason", "r", "--charge-usd", "0", "--dry-run", code=3)
    run("adjust", "x", "--reason", "r", "--charge-usd", "0", code=3)
    run("budgets", "rebuild")
    lines = run("audit", "--json")
    assert [(line["action"], line["target"], line["result"]) for line in lines] == [
        ("key.create", "anna", "done"),
        ("key.block", "nobody", "refused"),
        ("account.update", "proj_default", "done"),
        ("credit.add", "anna", "done"),
        ("adjust", "x", "refused"),
        ("budgets.rebuild", None, "done"),
    ]
    assert {(line["actor"], line["via"]) for line in lines} == {(getpass.getuser(), "cli")}
    assert lines[0]["details"]["typed"][:6] == ["keys", "create", "--alias", "anna", "--budget", "5"]
    assert made["key"] not in run.out
    assert run("audit", "--json", "--since", "2100-01-01") == []
    run("audit")
    assert re.search("key.block +nobody +refused: key: no key has the id", run.out)
