"""Limit rules in SQL, and the readers that follow their changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import Engine

from proxy.billing.keys import ApiKey
from proxy.billing.limit_rules import LimitRule
from proxy.billing.limits import Limits
from proxy.billing.money import Nusd
from proxy.keys.keyring import Keyring
from proxy.ledger.accounts import key_store
from proxy.ledger.accounts.key_store import KeyStore
from proxy.ledger.limit_rules import RuleError, RuleStore, UnknownRuleError
from proxy.ledger.limits import next_revision
from proxy.storage.database import reading
from tests.support.recorder import Recorder

pytestmark = pytest.mark.io

NOW = 1_793_000_000.0
FIVE = Limits(budget_nusd=5, budget_window="calendar_month")
WHOLE: dict[str, Any] = {
    "scope_id": "proj_default", "models": ("gpt-4*", "m"), "values": {"tag:team": "v_red"},
    "split_by": ("end_user", "session"), "required": True,
    "fallback_model": "m2",
}  # fmt: skip


@pytest.fixture
def rules(engine: Engine) -> RuleStore:
    return RuleStore(engine, clock=lambda: NOW)


def revision(engine: Engine) -> int:
    with reading(engine) as connection:
        return next_revision(connection) - 1


def a_key(engine: Engine) -> ApiKey:
    return KeyStore(engine, clock=lambda: NOW).create(
        key_id="key-1", alias="a", digest=b"x" * 32, hint="", models=None, expires_at=None
    )


def test_a_rule_comes_back_as_it_was_made_and_changed(engine: Engine, rules: RuleStore) -> None:
    whole = rules.create(rule_id="rule_1", name="each", limits=FIVE, **WHOLE)
    plain = rules.create(rule_id="rule_2", name="all", limits=Limits(rpm=3), providers=("one", "two"))
    assert plain.providers == ("one", "two")
    assert rules.every() == [whole, plain]
    assert (whole.split_by, whole.values, whole.created_at) == (("end_user", "session"), {"tag:team": "v_red"}, NOW)
    assert [rules.one(one) for one in ("rule_1", "all")] == [whole, plain]
    changed = rules.update("each", rpm=7, required=False, models=(), fallback_model=None)
    assert (changed.limits.rpm, changed.limits.budget_nusd, changed.required, changed.models) == (7, 5, False, ())
    assert rules.update("each", rpm=7) == changed, "the same takes no new revision"
    with pytest.raises(RuleError, match="fallback_model: gpt-4-turbo counts in this limit, too"):
        rules.update("each", models=("gpt-4*",), fallback_model="gpt-4-turbo")
    deleted = rules.delete("each")
    assert (deleted.deleted_at, rules.every()) == (NOW, [plain])
    with pytest.raises(UnknownRuleError, match="limit: no limit has the id or the name 'each'"):
        rules.one("each")
    again = rules.create(rule_id="rule_3", name="each", limits=FIVE)
    assert whole.revision < plain.revision < changed.revision < deleted.revision < again.revision == revision(engine)


WRONG: dict[str, dict[str, Any]] = {
    "limits: give at least one": {"limits": Limits()},
    "prepaid, cost_in_answers: are for keys and accounts only": {"limits": Limits(prepaid=True, rpm=1)},
    "rpm: must be 1 to": {"limits": Limits(rpm=0)},
    "name: must be 1 to": {"name": " "},
    "name: another limit already has the name 'there'": {"name": "there"},
    "models: must be names of models": {"models": ("a*b",)},
    "models: must be at most": {"models": tuple(map(str, range(51)))},
    "split_by: 'user' is no dimension": {"split_by": ("user",)},
    "split_by: must be at most 3": {"split_by": ("end_user", "session", "run", "tag:a")},
    "split_by: run has one value in this limit already": {"split_by": ("run",), "values": {"run": "v_1"}},
    "required: needs split_by": {"required": True},
    "fallback_model: must be the name of a model, not 'gpt 4'": {"models": ("m",), "fallback_model": "gpt 4"},
    "providers: must be names of providers in the configuration, not 'One'": {"providers": ("One",)},
    "providers: must be at most": {"providers": tuple(f"p{number}" for number in range(51))},
    "budget_window: must be at most a day for some providers": {"providers": ("one",)},
    "fallback_model: m counts in this limit, too: set the models of the limit, without it": {"fallback_model": "m"},
    "fallback_model: cannot be combined with alert_only": {
        "models": ("m",),
        "fallback_model": "f",
        "limits": Limits(budget_nusd=Nusd(5), alert_only=True),
    },
    "thresholds: needs a budget": {"limits": Limits(rpm=5, thresholds=(80,))},
}


@pytest.mark.parametrize(("message", "fields"), WRONG.items())
def test_a_wrong_rule_names_its_field_and_is_not_written(
    rules: RuleStore, message: str, fields: dict[str, Any]
) -> None:
    there = rules.create(rule_id="rule_1", name="there", limits=FIVE)
    with pytest.raises(ValueError, match=message):
        rules.create(**{"rule_id": "rule_2", "name": "new", "limits": FIVE, **fields})
    assert rules.every() == [there]


def test_there_are_so_many_and_no_more(rules: RuleStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.ledger.limit_rules.RULES_MAX", 2)
    for number in range(2):
        rules.create(rule_id=f"rule_{number}", name=str(number), limits=FIVE)
    with pytest.raises(RuleError, match="there are 2 already"):
        rules.create(rule_id="rule_3", name="3", limits=FIVE)
    rules.delete("0")
    rules.create(rule_id="rule_3", name="3", limits=FIVE)


def test_a_reader_of_changes_misses_none_however_they_are_cut(
    engine: Engine, rules: RuleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule has its revision in common with an account."""
    monkeypatch.setattr(key_store, "CHANGES_MAX", 1)
    keys, seen, at = KeyStore(engine, clock=lambda: NOW), list[str](), revision(engine)
    a_key(engine)
    for number in range(3):
        rules.create(rule_id=f"rule_{number}", name=str(number), limits=FIVE)
    rules.delete("1")
    behind = True
    while behind:
        page = keys.changes_since(at)
        at, behind = page.revision, page.behind
        seen += [row.rule_id for row in page.rows if isinstance(row, LimitRule)]
    assert sorted(seen) == ["rule_0", "rule_1", "rule_2"]
    assert at == revision(engine)


async def test_a_process_learns_of_rules_and_forgets_deleted_ones(engine: Engine, rules: RuleStore) -> None:
    key = a_key(engine)
    kept = await asyncio.to_thread(rules.create, rule_id="rule_0", name="all", limits=FIVE)
    keyring = Keyring(KeyStore(engine, clock=lambda: NOW), pepper=b"p", unix_time=lambda: NOW, observer=Recorder())
    await keyring.start()
    assert keyring.access(key).rules == (kept,)
    mine = await asyncio.to_thread(
        rules.create, rule_id="rule_1", name="mine", limits=FIVE, scope_id="key-1", split_by=("end_user",)
    )
    await asyncio.to_thread(rules.create, rule_id="rule_2", name="another's", limits=FIVE, scope_id="key-2")
    await keyring.refresh()
    assert keyring.access(key).rules == (kept, mine)
    levels = keyring.access(key).levels("m", {"end_user": "v_1"})
    assert [one.scope_id for one in levels] == ["rule_0", "rule_1/v_1"]
    assert [one.scope_id for one in keyring.access(key).levels("m", {})] == ["rule_0"]
    await asyncio.to_thread(rules.delete, "rule_0")
    await keyring.refresh()
    assert keyring.access(key).rules == (mine,)
    keyring.close()
