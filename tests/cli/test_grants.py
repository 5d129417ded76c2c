"""`tokenweir grants`: each command prints what it wrote, and nothing is granted twice."""

from __future__ import annotations

import re

import pytest

from proxy.cli.list_tables import GRANTS
from tests.cli.commands import Commands, on_a_terminal

pytestmark = pytest.mark.io


def test_a_grant_is_added_once_shown_and_revoked(run: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    (key,) = run("keys", "create", "--alias", "anna", "--prepaid")
    (made,) = run("grants", "add", "trial", "--key", "anna", "--usd", "5.5", "--expires", "14d")
    amounts = {name: made[f"{name}_usd"] for name in ("granted", "burned", "expired", "left")}
    assert amounts == {"granted": "5.5", "burned": "0", "expired": "0", "left": "5.5"}
    assert (made["scope_id"], made["recurs"], made["usd"]) == (key["key_id"], None, "5.5")
    again = run.refused("grants", "add", "trial", "--key", "anna", "--usd", "9")
    assert again == "tokenweir: name: anna already has a grant 'trial'"
    monthly = ("--account", "proj_default", "--usd", "10", "--recurs", "calendar_month", "--time-zone", "Europe/Berlin")
    (later,) = run("grants", "add", "monthly", *monthly, "--begins", "7d", "--priority", "10")
    assert (later["granted_usd"], later["time_zone"], later["priority"]) == ("0", "Europe/Berlin", 10)
    assert run("grants", "list") == [made, later]
    assert run("grants", "list", "--key", "anna") == [made]
    (ended,) = run("grants", "revoke", made["grant_id"], "--yes")
    assert (ended["expired_usd"], ended["left_usd"]) == ("5.5", "0")
    assert run("grants", "list", "--key", "anna") == []
    assert run("grants", "list", "--key", "anna", "--all") == [ended]
    run("audit", "--json")
    assert ("grant.add" in run.out, "grant.revoke" in run.out) == (True, True)
    (_, credit) = run("ledger", "--json")
    assert credit["details"]["grant"] == made["grant_id"]
    on_a_terminal(monkeypatch)
    run("grants", "list", "--account", "proj_default")
    header, row = run.out.splitlines()
    assert (header.split()[0], row.split()[0]) == ("NAME", "monthly")
    assert max(map(len, (header, row))) <= 80
    (open_ended,) = run("grants", "add", "gift", "--key", "anna", "--usd", "1", "--json")
    run("grants", "list", "--key", "anna", "--all", "--wide")
    (state,) = (title.start() for title in re.finditer(r"STATE \(UTC\)", run.out))
    assert [line[state:].split("  ")[0] for line in (row, *run.out.splitlines()[1:])] == [
        f"planned from {later['begins_at'][:16].replace('T', ' ')}",
        f"revoked {ended['revoked_at'][:16].replace('T', ' ')}",
        "usable, without an end",
    ]
    shown = {**open_ended, "expires_at": "2999-01-01T00:00:00Z"}
    assert GRANTS.columns["state"].cell(shown) == "usable until 2999-01-01 00:00"
    assert GRANTS.columns["state"].cell({**shown, "left_usd": "0"}) == "used up"
    assert GRANTS.columns["state"].cell({**shown, "expires_at": "2026-01-01T00:00:00Z"}) == "expired 2026-01-01 00:00"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("add a --usd 1", "one of the arguments --key --account is required"),
        ("add a --account org_default --usd 0", "--usd: must be 0.000000001 to"),
        ("add a --account org_default --usd 1 --expires never", "--expires: must be a date, or a duration such as 14d"),
        ("add a --account org_default --usd 1 --begins 20d --expires 2d", "--expires: must be after the grant begins"),
        (
            "add a --account org_default --usd 1 --time-zone Europe/Berlin",
            "--time-zone: is only for a grant that recurs",
        ),
        ("revoke x --yes", "grant: no grant has the id 'x'"),
    ],
)
def test_what_is_wrong_is_named(run: Commands, options: str, words: str) -> None:
    assert words in run.refused("grants", *options.split())
