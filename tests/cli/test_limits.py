"""`tokenweir limits`: each command prints what it wrote, and the audit log has no person's id."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.cli.commands import Commands, on_a_terminal

pytestmark = pytest.mark.io

NEXT_YEAR = datetime.now(UTC).year + 1


def test_a_limit_is_made_shown_changed_and_deleted(run: Commands) -> None:
    options = ("--split-by", "End_User", "--model", "gpt-4*", "--budget", "5", "--budget-window", "calendar_month")
    (made,) = run("limits", "create", "per-user", "--project", "default", *options, "--required")
    assert made["rule_id"].startswith("rule_")
    assert (made["scope_id"], made["split_by"], made["models"]) == ("proj_default", ["end_user"], ["gpt-4*"])
    assert made["limits"] == {"budget_usd": "5", "budget_window": "calendar_month"}
    assert run("limits", "list") == [{**made, "change_with": "tokenweir limits update per-user"}]
    (changed,) = run("limits", "update", "per-user", "--budget", "8", "--no-required", "--fallback-model", "gpt-3")
    assert (changed["limits"]["budget_usd"], changed["fallback_model"], changed["required"]) == ("8", "gpt-3", False)
    (changed,) = run("limits", "update", "per-user", "--model", "none", "--fallback-model", "none")
    assert (changed["models"], changed["fallback_model"]) == (None, None)
    (deleted,) = run("limits", "delete", "per-user", "--yes")
    assert deleted["deleted_at"]
    assert run("limits", "list") == []
    assert run.refused("limits", "delete", "per-user") == "tokenweir: limit: no limit has the id or the name 'per-user'"


def test_one_list_has_the_limits_of_keys_and_accounts_too(run: Commands) -> None:
    """In the form of rules; the filter by a key has what can refuse its requests."""
    run("accounts", "create-project", "chat", "--organization", "default", "--rpm", "9")
    (key,) = run("keys", "create", "--alias", "chat app", "--project", "chat", "--budget", "5")
    run("keys", "create", "--alias", "other", "--prepaid")
    run("keys", "create", "--alias", "unlimited")
    run("keys", "create", "--alias", "gone", "--budget", "1")
    run("keys", "revoke", "gone", "--yes")
    run("limits", "create", "per-user", "--project", "chat", "--split-by", "end_user", "--budget", "5")
    run("limits", "create", "elsewhere", "--key", "other", "--budget", "5")
    listed = {one["name"]: one for one in run("limits", "list", "--all")}
    assert list(listed) == ["per-user", "elsewhere", "project chat", "key other", "key chat app"]
    own = listed["key chat app"]
    assert (own["rule_id"], own["scope_id"], own["limits"]) == (key["key_id"], key["key_id"], key["limits"])
    assert own["change_with"] == "tokenweir keys update 'chat app'"
    project = listed["project chat"]
    assert project["change_with"] == f"tokenweir accounts update {project['rule_id']}"
    assert project["limits"] == {"rpm": 9}
    own_list = run("limits", "list", "--key", "chat app")
    assert [one["name"] for one in own_list] == ["key chat app", "project chat", "per-user"]
    assert [one["name"] for one in run("limits", "list")] == ["per-user", "elsewhere"]


@pytest.mark.parametrize("limit", ["key chat app", "key_0a1b"])
def test_the_limits_of_a_key_are_changed_with_its_own_command(run: Commands, limit: str) -> None:
    for command in (("update", limit, "--budget", "8"), ("delete", limit, "--yes")):
        words = (
            "tokenweir: limit: the limits of a key are changed with `tokenweir keys update`, or with POST /key/update"
        )
        assert run.refused("limits", *command) == words


def test_quotas_alerts_and_a_raise(run: Commands) -> None:
    window = ("--budget-window", "calendar_day", "--time-zone", "Europe/Berlin")
    (made,) = run("limits", "create", "daily", *window, "--quota", "requests=100", "--quota", "output_tokens=5000")
    quotas = {"requests": 100, "output_tokens": 5000}
    assert made["limits"] == {"quotas": quotas, "budget_window": "calendar_day", "time_zone": "Europe/Berlin"}
    (changed,) = run("limits", "update", "daily", "--quota", "requests=200")
    assert changed["limits"]["quotas"] == quotas | {"requests": 200}
    words = "tokenweir: --quota: only their amounts can be changed; create another limit for another quota"
    assert run.refused("limits", "update", "daily", "--quota", "tokens=1") == words
    (soft,) = run("limits", "create", "soft", "--budget", "5", "--alert-only", "--alert-at", "90", "--alert-at", "50")
    assert soft["limits"] | {"budget_usd": "5", "alert_only": True, "thresholds": [50, 90]} == soft["limits"]
    (key,) = run(
        "keys", "create", "--alias", "raised", "--budget", "5", "--raise", "2.5", "--raise-until", f"{NEXT_YEAR}-01-31"
    )
    assert key["limits"]["raised"] == {"usd": "2.5", "until": f"{NEXT_YEAR}-01-31T00:00:00.000000Z"}
    (key,) = run("keys", "update", "raised", "--raise", "none")
    assert "raised" not in key["limits"]


def test_a_person_sees_a_table(run: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    run(
        "limits",
        "create",
        "per-user",
        "--split-by",
        "end_user",
        "--provider",
        "one",
        "--budget",
        "5",
        "--budget-window",
        "24h",
        "--rpm",
        "20",
        "--parallel",
        "4",
    )
    on_a_terminal(monkeypatch)
    run("limits", "list")
    header, row = run.out.splitlines()
    assert row.endswith("rpm 20, parallel 4")
    assert header.split()[0] == "NAME"
    assert row.split()[0] == "per-user"
    assert "end_user" in row
    assert max(map(len, (header, row))) <= 80


def test_one_value_belongs_to_a_project_and_is_not_in_the_audit_log(run: Commands) -> None:
    only = ("--only", "end_user=alice@example.com", "--only=tag:stage=test", "--budget", "5")
    assert "--only: needs --project or --key" in run.refused("limits", "create", "alice", *only)
    (made,) = run("limits", "create", "alice", "--project", "default", *only)
    assert made["only"] == {"end_user": "alice@example.com", "tag:stage": "test"}
    assert run("limits", "list")[0].items() >= made.items()
    run("audit", "--json")
    assert "limit.create" in run.out
    assert "alice@" not in run.out
    run("erase", "--end-user", "alice@example.com", "--yes")
    ((end_user, _),) = [tuple(one["only"].values()) for one in run("limits", "list")]
    assert end_user.startswith("v_")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("a --split-by user --rpm 1", "--split-by: must be end_user, session, run or tag:NAME, not 'user'"),
        ("a --only alice --rpm 1", "--only: must be DIMENSION=VALUE, such as end_user=alice, not 'alice'"),
        ("a", "limits: give at least one: a budget, a quota, rpm, tpm or parallel"),
        ("a --quota days=3", "--quota: must be MEASURE=N, with requests, input_tokens, output_tokens, tokens, not"),
        ("a --quota tokens=1 --quota tokens=2", "--quota: the same measure is given twice"),
        ("a --quota tokens=0", "--quota: must be a whole number, 1 to 1000000000000, not '0'"),
        ("a --rpm 1 --alert-only", "tokenweir: --alert-only: needs a budget"),
        ("a --budget 1 --raise 5", "--raise: needs --raise-until, and --raise-until needs --raise"),
        ("a --budget 1 --raise 5 --raise-until never", "--raise-until: must be a time; to raise the budget for ever"),
        ("a --rpm 1 --raise 5 --raise-until 3d", "tokenweir: --raise: needs a budget"),
        ("a --project nobody --rpm 1", "tokenweir: --project: no project has the id or the name 'nobody'"),
        ("a --key k --project p --rpm 1", "not allowed with argument --key"),
        ("a --provider one --budget 1", "tokenweir: --budget-window: must be at most a day for some providers"),
        ("a --rpm 1 --time-zone Europe/Berlin", "tokenweir: --time-zone: is for windows by the calendar, as calendar_"),
        ("a --rpm 1 --required", "tokenweir: --required: needs --split-by, the dimensions that requests must have"),
        ("a --rpm 1 --fallback-model m", "tokenweir: --fallback-model: m counts in this limit, too: set the models of"),
        (
            "a --budget 1 --alert-only --model m --fallback-model f",
            "tokenweir: --fallback-model: cannot be combined with --alert-only: such a limit refuses no request",
        ),
        (
            "a --quota tokens=5 --alert-at 80",
            "tokenweir: --alert-at: needs a budget: a quota or a rate sends no alert",
        ),
        ("a --prepaid", "unrecognized arguments: --prepaid"),
    ],
)
def test_what_is_wrong_is_named(run: Commands, options: str, words: str) -> None:
    assert words in run.refused("limits", "create", *options.split())


def test_an_option_that_only_the_help_mentions_is_not_suggested(run: Commands) -> None:
    refused = run.refused("limits", "update", "per-user", "--split-by", "session")
    assert refused.endswith("unrecognized arguments: --split-by session")
