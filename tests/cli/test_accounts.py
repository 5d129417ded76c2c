"""`keys`, `accounts` and `credit`, from the command line to the ledger and back."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from proxy.billing.dimensions import KeyDimensions
from proxy.billing.keys import ApiKey
from proxy.cli import main
from proxy.foundation.outage import OutageLog
from proxy.keys.access import Refused
from proxy.keys.keyring import Keyring
from proxy.keys.narrowing import narrowed_text
from proxy.runtime.machine.ledger_stores import LedgerStores
from proxy.settings import load
from tests.cli.commands import Commands
from tests.ledger.priced_entries import a_real_entry

pytestmark = pytest.mark.io

LIMITS = (
    *("--budget", "12.5", "--budget-window", "calendar_month", "--prepaid"),
    *("--rpm", "60", "--tpm", "100000", "--parallel", "4", "--cost-in-answers"),
)
SHOWN = {
    "budget_usd": "12.5",
    "budget_window": "calendar_month",
    "prepaid": True,
    "cost_in_answers": True,
    "rpm": 60,
    "tpm": 100_000,
    "parallel": 4,
}


async def asked(run: Commands, secret: str) -> ApiKey | Refused:
    """What a proxy that starts now says to this key."""
    store = LedgerStores.open(load(run.config, {}))
    keyring = Keyring(store.keys, pepper=store.pepper(), unix_time=time.time, observer=OutageLog("keys"))
    try:
        await keyring.refresh()
        return await (keyring.narrowed_key(secret) if "." in secret else keyring.key(secret))
    finally:
        keyring.close()
        store.close()


async def test_a_key_with_everything(run: Commands) -> None:
    (acme,) = run("accounts", "create-organization", "acme")
    (web,) = run("accounts", "create-project", "web", "--organization", "acme", "--rpm", "9")
    options = (
        *("--on-exhausted", "cut", "--on-store-outage", "fail_open"),
        *("--tag", "team:a", "--tag", "b", "--model", "m"),
        *("--dimension-source", "baggage", "--dimension-source", "claude_code"),
        *("--dimension", "end_user=alice", "--dimension", "tag:team=red", "--byok", "5.0%"),
    )
    (made,) = run("keys", "create", "--alias", "anna", "--project", "web", *LIMITS, *options)
    secret = made.pop("key")
    lifetime_s = _unix(made["expires_at"]) - _unix(made["created_at"])
    assert lifetime_s == pytest.approx(90 * 86_400, abs=5)
    assert made == {
        **{name: made[name] for name in ("key_id", "hint", "created_at", "expires_at")},
        "alias": "anna",
        "models": ["m"],
        "project_id": web["account_id"],
        "limits": SHOWN,
        "on_exhausted": "cut",
        "on_store_outage": "fail_open",
        "tags": ["team:a", "b"],
        "dimension_sources": ["claude_code", "baggage"],
        "dimensions": {"end_user": "alice", "tag:team": "red"},
        "byok": "5%",
        "revoked_at": None,
        "blocked_at": None,
        "old_until": None,
    }
    assert run("keys", "list") == [made]
    (shown,) = run("keys", "info", "anna")
    nothing = {"used_usd": "0", "credit_usd": "0", "left_usd": None}
    assert shown == {
        **made,
        "budget": {
            "budget_usd": SHOWN["budget_usd"],
            "spent_usd": "0",
            "left_usd": SHOWN["budget_usd"],
        },
        "balance": nothing,
        "project": {**web, "balance": nothing},
        "organization": {**acme, "balance": nothing},
    }
    assert secret[3:] not in run.out
    assert isinstance(await asked(run, secret), ApiKey)


def _unix(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_a_key_without_anything(run: Commands) -> None:
    (made,) = run("keys", "create", "--alias", "anna", "--expires", "never")
    assert (made["project_id"], made["limits"], made["tags"]) == ("proj_default", {}, [])
    assert (made["on_exhausted"], made["on_store_outage"], made["expires_at"]) == ("finish", None, None)
    assert run("keys", "info", "anna")[0]["organization"]["account_id"] == "org_default"


def test_a_deployment_can_limit_how_long_keys_live(run: Commands) -> None:
    run.config.write_text(run.config.read_text() + "key_lifetime_max: 30d\n")
    for expires in ("never", "31d"):
        assert run("keys", "create", "--alias", "a", "--expires", expires, code=1) == []
        assert "expires: must be within 30 days (setting key_lifetime_max)" in run.err
    run("keys", "create", "--alias", "a", "--expires", "30d")
    assert run("keys", "update", "a", "--expires", "never", code=1) == []


def test_an_update_changes_what_is_given_and_none_clears_it(run: Commands) -> None:
    (made,) = run(
        "keys", "create", "--alias", "anna", *LIMITS, "--model", "m", "--tag", "t", "--on-store-outage", "fail_open"
    )
    made.pop("key")
    assert run("keys", "update", "anna") == [made]
    (changed,) = run(
        "keys", "update", "anna", "--alias", "bert", "--rpm", "none", "--parallel", "5", "--budget-window", "none",
        "--model", "a", "--model", "b", "--expires", "never", "--on-exhausted", "cut",
    )  # fmt: skip
    limits = {**SHOWN, "parallel": 5, "budget_window": "none"}
    del limits["rpm"]
    assert changed == {
        **made, "alias": "bert", "limits": limits, "models": ["a", "b"], "expires_at": None, "on_exhausted": "cut",
    }  # fmt: skip
    cleared = ("--budget", "none", "--no-prepaid", "--no-cost-in-answers", "--tpm", "none", "--parallel", "none")
    (plain,) = run("keys", "update", "bert", *cleared, "--model", "none", "--tag", "none", "--on-store-outage", "none")
    for wrong in ("half", "5", "nothing"):
        run("keys", "update", "bert", "--byok", wrong, code=2)
    for terms, stored in (("0.0020usd/request", "0.002usd/request"), ("free", "free"), ("none", None)):
        assert run("keys", "update", "bert", "--byok", terms) == [{**plain, "byok": stored}]
    assert plain == {**changed, "limits": {}, "models": None, "tags": [], "on_store_outage": None}
    assert run("keys", "list") == [plain]


def test_dimensions_of_a_key_change_one_by_one(run: Commands) -> None:
    (made,) = run("keys", "create", "--alias", "a", "--dimension", "run=7", "--dimension-source", "none")
    assert (made["dimension_sources"], made["dimensions"]) == ([], {"run": "7"})
    for options, sources, fixed in (
        (("--dimension", "Tag:Team= a=b "), [], {"tag:team": "a=b"}),
        (("--dimension-source", "litellm"), ["litellm"], {"tag:team": "a=b"}),
        (("--dimension", "none"), ["litellm"], {}),
        (("--dimension-source", "default"), None, {}),
    ):
        (changed,) = run("keys", "update", "a", *options)
        assert (changed["dimension_sources"], changed["dimensions"]) == (sources, fixed)
    for wrong, error in (("team=a", "names must be"), ("run= ", "run must have"), ("run", "must be NAME=VALUE")):
        run("keys", "update", "a", "--dimension", wrong, code=2 if wrong == "run" else 1)
        assert error in run.err


async def test_a_key_is_narrowed_without_the_proxy(
    run: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (made,) = run("keys", "create", "--alias", "anna", "--narrowable", "--expires", "1h")
    assert made["key"].startswith(f"tw-{made['key_id']}.")
    assert made["hint"][-4:] == made["key"][-4:]

    def narrow(key: str, *options: str, code: int = 0) -> str:
        monkeypatch.setenv("TOKENWEIR_KEY", key)
        assert main(["keys", "narrow", *options]) == code
        printed = capsys.readouterr()
        assert code == 0 or not key or key not in printed.err
        return (printed.err if code else printed.out).strip()

    child = narrow(made["key"], "--model", "a", "--model", "b", "--run", "7", "--end-user", "zoë", "--expires", "2h")
    grandchild = narrow(child, "--model", "b", "--usd", "2.5", "--no-stored")
    found = await asked(run, grandchild)
    assert isinstance(found, ApiKey)
    assert (found.key_id, found.models, found.expires_at) == (made["key_id"], {"b"}, _unix(made["expires_at"]))
    assert found.dimensions == KeyDimensions(None, {"end_user": "zoë", "run": "7"})
    assert [cap.nusd for cap in found.caps] == [2_500_000_000]
    assert not found.uses_stored
    assert narrow(child, "--usd", "1") != narrow(child, "--usd", "1"), "each has a cap of its own"
    named = narrow(made["key"], "--usd", "1", "--run", "7", "--name", "ci", "--quiet")
    assert named == narrow(made["key"], "--name", "ci", "--run", "7", "--usd", "1"), "in whatever order"
    assert named == narrowed_text(made["key"], ["name=ci", "usd=1", "run=7"])
    (rotated,) = run("keys", "rotate", "anna", "--narrowable", "--grace", "now")
    assert await asked(run, child) is Refused.EXPIRED
    assert isinstance(await asked(run, narrow(rotated["key"], "--session", "s")), ApiKey)
    (plain,) = run("keys", "rotate", "anna")
    assert "--narrowable" in narrow(plain["key"], "--model", "a", code=1)
    assert "TOKENWEIR_KEY" in narrow("", "--model", "a", code=1)
    assert "an option that restricts" in narrow(rotated["key"], code=2)
    assert "run" in narrow(child, "--run", "8", code=1)


async def test_rotating_blocking_revoking(run: Commands) -> None:
    (made,) = run("keys", "create", "--alias", "anna")
    (rotated,) = run("keys", "rotate", "anna")
    assert _unix(rotated["old_until"]) == pytest.approx(time.time() + 86_400, abs=60)
    assert rotated["key"] != made["key"]
    assert isinstance(await asked(run, made["key"]), ApiKey)
    assert isinstance(await asked(run, rotated["key"]), ApiKey)
    (again,) = run("keys", "rotate", "anna", "--grace", "now")
    assert await asked(run, made["key"]) is Refused.UNKNOWN
    assert await asked(run, rotated["key"]) is Refused.REPLACED
    assert isinstance(await asked(run, again["key"]), ApiKey)
    run("keys", "rotate", "anna", "--grace", "0s")
    (last,) = run("keys", "rotate", "anna", "--grace", "30m")
    assert run("keys", "block", "anna")[0]["blocked_at"] is not None
    assert await asked(run, last["key"]) is Refused.BLOCKED
    assert run("keys", "unblock", last["key_id"])[0]["blocked_at"] is None
    assert isinstance(await asked(run, last["key"]), ApiKey)
    run("accounts", "block", "proj_default")
    assert await asked(run, last["key"]) is Refused.BLOCKED
    run("accounts", "unblock", "proj_default")
    run("keys", "revoke", "anna")
    assert await asked(run, last["key"]) is Refused.REVOKED
    run("keys", "unblock", last["key_id"], code=1)
    assert "is revoked" in run.err


def test_accounts(run: Commands) -> None:
    default = run("accounts", "list")
    assert [(one["account_id"], one["kind"]) for one in default] == [
        ("org_default", "organization"),
        ("proj_default", "project"),
    ]
    (acme,) = run("accounts", "create-organization", "acme", *LIMITS)
    (web,) = run("accounts", "create-project", "web", "--organization", acme["account_id"])
    assert (acme["limits"], web["limits"], web["parent_id"]) == (SHOWN, {}, acme["account_id"])
    (renamed,) = run("accounts", "update", "acme", "--name", "acme inc", "--budget", "none", "--rpm", "2")
    assert renamed == {
        **acme,
        "name": "acme inc",
        "limits": {"prepaid": True, "cost_in_answers": True, "rpm": 2, "tpm": 100_000, "parallel": 4},
    }
    assert run("accounts", "block", "web")[0]["blocked_at"] is not None
    assert run("accounts", "unblock", "web") == [web]
    (shown,) = run("accounts", "info", "web")
    assert shown.pop("organization").items() >= renamed.items()
    assert shown.items() >= web.items()
    assert "organization" not in run("accounts", "info", "acme inc")[0]
    assert run("accounts", "list") == [*default, renamed, web]


def test_credit_is_a_line_of_the_ledger_and_part_of_the_balance(run: Commands) -> None:
    (key,) = run("keys", "create", "--alias", "anna")
    used = a_real_entry(0, key=key["key_id"])
    run.settle(used)
    (line,) = run("credit", "add", "--key", "anna", "--usd", "50", "--reason", "invoice 17")
    assert (line["kind"], line["key_id"], line["key_alias"]) == ("credit", key["key_id"], "anna")
    assert (line["charge_usd"], line["cost_usd"], line["details"]["why"]) == ("-50", "0", "invoice 17")
    (refund,) = run("credit", "add", "--key", key["key_id"], "--usd", "-5.000000001", "--reason", "paid back")
    assert refund["charge_usd"] == "5.000000001"
    (of_all,) = run("credit", "add", "--account", "proj_default", "--usd", "7", "--reason", "r")
    assert (of_all["key_id"], of_all["key_alias"]) == ("proj_default", "default")
    assert run("ledger", "--json")[1:] == [line, refund, of_all]
    run("ledger", "--key", "anna")
    assert run.out.splitlines()[-1].endswith("5.000000001  credit: paid back")
    charged = (used.charge_nusd or 0) / 10**9
    (shown,) = run("keys", "info", "anna")
    balances = [shown["balance"], shown["project"]["balance"], shown["organization"]["balance"]]
    assert [float(one["used_usd"]) for one in balances] == [charged] * 3
    assert [one["credit_usd"] for one in balances] == ["44.999999999", "7", "0"]
    assert float(balances[0]["left_usd"]) == pytest.approx(44.999999999 - charged)
    run("keys", "update", "anna", "--budget", "5", "--budget-window", "none")
    budget = run("keys", "info", "anna")[0]["budget"]
    assert (float(budget["spent_usd"]), float(budget["left_usd"])) == pytest.approx((charged, 5 - charged))
    run("reconcile")
    assert "credits       ok" in run.out


REFUSED = {
    "NAME": ["accounts", "create-organization", " "],
    "organization": ["accounts", "create-project", "web", "--organization", "nobody"],
    "account": ["accounts", "update", "nobody", "--rpm", "1"],
    "2 accounts have the name": ["accounts", "block", "default"],
    "project": ["keys", "create", "--alias", "bert", "--project", "nobody"],
    "alias: ": ["keys", "create", "--alias", "anna"],
    "key": ["keys", "rotate", "nobody"],
    "--budget: ": ["keys", "update", "anna", "--budget", "1000001"],
    "--budget-window: ": ["keys", "create", "--alias", "bert", "--budget-window", "soon"],
    "--rpm: must be a whole number, 1 to 1000000000, not '0'": [
        "accounts",
        "create-organization",
        "acme",
        "--rpm",
        "0",
    ],
    "--tag: ": ["keys", "update", "anna", "--tag", "x" * 65],
    "--usd: must be -1000000 to 1000000 USD, not 0": ["credit", "add", "--key", "anna", "--usd", "0", "--reason", "r"],
    "--reason: ": ["credit", "add", "--key", "anna", "--usd", "1", "--reason", " "],
    "account: 2": ["credit", "add", "--account", "default", "--usd", "1", "--reason", "r"],
}


def test_what_cannot_be_is_refused_in_one_line_that_names_it(run: Commands) -> None:
    run("keys", "create", "--alias", "anna")
    before = run("keys", "list"), run("accounts", "list")
    for words, arguments in REFUSED.items():
        assert words in run.refused(*arguments)
    assert (run("keys", "list"), run("accounts", "list"), run("ledger", "--json")) == (*before, [])


def test_the_secret_alone_for_scripts(run: Commands, capsys: pytest.CaptureFixture[str]) -> None:
    run("keys", "create", "--alias", "anna", "--quiet")
    first = run.out
    assert first.startswith("tw-")
    assert first.count("\n") == 1
    run("keys", "rotate", "anna", "--quiet")
    assert run.out.startswith("tw-")
    assert run.out != first


@pytest.mark.parametrize("expires", ["90", "soon", "90 d", "-1d"])
def test_a_wrong_lifetime_is_wrong_usage(run: Commands, expires: str) -> None:
    run("keys", "create", "--alias", "a", "--expires", expires, code=2)
