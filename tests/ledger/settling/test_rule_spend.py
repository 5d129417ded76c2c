"""What the counters of limit rules count: sums say what all entries come to, and changes are what moves them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from sqlalchemy import Engine, insert

from proxy.billing.entries import LedgerEntry
from proxy.billing.limit_rules import LimitRule, rule_of
from proxy.billing.limits import Limits, Measure, quota_counter_id
from proxy.billing.money import Nusd
from proxy.ledger.dimensions.sums import add_up
from proxy.ledger.limit_rules import RuleStore
from proxy.ledger.schema.account_tables import accounts, api_keys
from proxy.ledger.settling.spend import changes, followed, ledger_time, sums
from proxy.ledger.settling.store import LedgerStore
from proxy.storage.database import writing
from tests.ledger.entries import a_store, an_entry, arriving, emptied
from tests.support.examples import examples

pytestmark = pytest.mark.io

DAY_S = 86_400
MIDNIGHT = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
NOON = MIDNIGHT + DAY_S / 2
KEYS = {"key_1": ("proj_a", "org_1"), "key_2": ("proj_b", "org_1"), "key_3": ("proj_c", "org_2")}
RULES: dict[str, dict[str, Any]] = {
    "all": {},
    "user": {"split_by": ("end_user",)},
    "project": {"scope_id": "proj_a", "split_by": ("end_user",)},
    "organization": {"scope_id": "org_1", "models": ("gpt-4*", "m")},
    "key": {"scope_id": "key_3", "values": {"tag:team": "v_red"}},
    "two": {"split_by": ("end_user", "session"), "models": ("gpt-4*",)},
    "one of two": {"values": {"end_user": "v_anna"}, "split_by": ("session",)},
    "provider": {"providers": ("one", "three")},
    "user of a provider": {"providers": ("two",), "models": ("gpt-4*",), "split_by": ("end_user",)},
}
QUOTAS = {Measure.REQUESTS: 1, Measure.OUTPUT_TOKENS: 1, Measure.TOKENS: 1}
LIMITS = Limits(budget_nusd=Nusd(1), budget_window="none", quotas=QUOTAS)
DAILY = structs.replace(LIMITS, budget_window="calendar_day")


def with_rules(engine: Engine) -> dict[str, LimitRule]:
    parents = {"org_1": None, "org_2": None, "proj_a": "org_1", "proj_b": "org_1", "proj_c": "org_2"}
    with writing(engine) as connection:
        for number, (one, parent) in enumerate(parents.items()):
            kind = "project" if parent else "organization"
            row = {"account_id": one, "parent_id": parent, "kind": kind, "revision": 100 + number, "name": ""}
            connection.execute(insert(accounts).values(created_at=MIDNIGHT, **row))
        for number, (key, (project, _)) in enumerate(KEYS.items()):
            row = {"key_id": key, "alias": key, "digest": key.encode(), "project_id": project, "revision": 200 + number}
            connection.execute(insert(api_keys).values(created_at=MIDNIGHT, hint="", **row))
    store = RuleStore(engine, clock=lambda: MIDNIGHT)
    return {
        name: store.create(
            rule_id=f"rule_{number}", name=name, limits=DAILY if "providers" in fields else LIMITS, **fields
        )
        for number, (name, fields) in enumerate(RULES.items())
    }


def counters_of(rules: dict[str, LimitRule], entry: LedgerEntry, dimensions: dict[str, str]) -> set[str]:
    """The plain rules: what an entry counts at."""
    found = set()
    for rule in rules.values():
        levels = (entry.key_id, *KEYS.get(entry.key_id, ()))
        models = [one for one in rule.models if entry.model == one or entry.model.startswith(one.rstrip("*"))]
        if (
            (rule.scope_id is None or rule.scope_id in levels)
            and (models or not rule.models)
            and (not rule.providers or entry.provider in rule.providers)
            and all(dimensions.get(name) == value for name, value in rule.values.items())
            and all(name in dimensions for name in rule.split_by)
        ):
            values = ",".join(dimensions[name] for name in rule.split_by)
            found.add(f"{rule.rule_id}/{values}" if values else rule.rule_id)
    return found


def charged(entries: Sequence[tuple[LedgerEntry, set[str]]], counter_id: str, since: float) -> int:
    return sum(one.charge_nusd or 0 for one, at in entries if counter_id in at and round(one.started_at, 6) >= since)


def counted(entries: Sequence[tuple[LedgerEntry, set[str]]], counter_id: str, since: float, measure: Measure) -> int:
    columns = {Measure.OUTPUT_TOKENS: "completion_tokens", Measure.TOKENS: "total_tokens"}
    found = [one for one, at in entries if counter_id in at and round(one.started_at, 6) >= since]
    if measure is Measure.REQUESTS:
        return sum(one.kind == "usage" for one in found)
    return sum(getattr(one, columns[measure]) or 0 for one in found)


def an_entry_of(number: int, dimensions: dict[str, str], **fields: Any) -> LedgerEntry:
    return an_entry(number, details={"dimensions": dimensions} if dimensions else {}, **fields)


def test_an_adjustment_counts_where_its_exchange_does(engine: Engine, store: LedgerStore) -> None:
    with_rules(engine)
    anna = {"end_user": "v_anna", "session": "v_1"}
    entry = an_entry_of(0, anna, key_id="key_1", started_at=NOON, charge_nusd=500)
    store.settle(arriving(entry))
    first_us = ledger_time(engine)
    store.settle(arriving(an_entry(0, kind="adjustment", seq=1, key_id="key_1", started_at=NOON, charge_nusd=-200)))
    wanted = [("rule_1/v_anna", 0.0), ("rule_1/v_anna", NOON), ("rule_2/v_anna", 0.0), ("rule_6/v_1", NOON)]
    assert [one.amount for one in sums(engine, wanted)] == [300] * 4
    while add_up(engine):
        pass
    assert [one.amount for one in sums(engine, wanted)] == [300] * 4
    ([change], _, _) = changes(engine, first_us, 10)
    counters = {"rule_0", "rule_1/v_anna", "rule_2/v_anna", "rule_6/v_1"}
    assert {one for one in change.counter_ids if rule_of(one)} == counters
    of_quotas = {quota_counter_id(one, measure) for one in counters for measure in QUOTAS}
    assert change.amounts.keys() == of_quotas - {f"{one}#requests" for one in counters}, "it is no further request"


def test_a_rule_that_is_deleted_counts_on_and_takes_no_new_entry(engine: Engine, store: LedgerStore) -> None:
    """What is reserved under it is released by its exchange; its total stays what it was read for."""
    with_rules(engine)
    store.settle(arriving(an_entry_of(0, {}, key_id="key_1", charge_nusd=5)))
    RuleStore(engine, clock=lambda: NOON).delete("all")
    ([change], _, _) = changes(engine, 0, 10)
    assert "rule_0" not in change.counter_ids
    assert followed(engine, ["key_1", "rule_0", "rule_1/v_x", "rule_0#tokens"]) == ["key_1", "rule_1/v_x"]
    assert [one.amount for one in sums(engine, [("rule_0", 0.0), ("rule_unknown/v_x", 0.0)])] == [5, 0]


DIMENSIONS = st.fixed_dictionaries(
    {},
    optional={
        "end_user": st.sampled_from(["v_anna", "v_bert", "overflow"]),
        "session": st.sampled_from(["v_1", "v_2"]),
        "tag:team": st.sampled_from(["v_red", "v_blue"]),
    },
)
SETTLED = st.tuples(
    st.sampled_from([*KEYS, "key_unknown"]),
    st.sampled_from(["m", "gpt-4o", "gpt-3"]),
    DIMENSIONS,
    st.integers(0, 3 * DAY_S * 1_000_000),
    st.one_of(st.none(), st.integers(-(10**6), 10**12)),
    st.booleans(),
    st.sampled_from(["one", "two"]),
)
STEPS = st.lists(st.tuples(st.lists(SETTLED, min_size=1, max_size=4), st.booleans()), max_size=5)


@given(steps=STEPS, since=st.sampled_from([0.0, MIDNIGHT, NOON, NOON + DAY_S, MIDNIGHT + 2 * DAY_S + 0.5]))
@settings(max_examples=examples(8), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_sums_and_changes_are_those_of_the_entries(engine: Engine, steps: Any, since: float) -> None:
    emptied(engine)
    rules, store = with_rules(engine), a_store(engine)
    entries: list[tuple[LedgerEntry, set[str]]] = []
    for number, (step, adds) in enumerate(steps):
        arrived = []
        for n, (key_id, model, dimensions, at_us, nusd, is_adjusted, provider) in enumerate(step):
            fields = {
                "key_id": key_id, "model": model, "started_at": MIDNIGHT + at_us / 1e6, "provider": provider,
            }  # fmt: skip
            entry = an_entry_of(10 * number + n, dimensions, charge_nusd=nusd, **fields)
            at = counters_of(rules, entry, dimensions)
            arrived.append(entry)
            entries.append((entry, at))
            if is_adjusted:
                more = an_entry(10 * number + n, kind="adjustment", seq=1, charge_nusd=7, total_tokens=-3, **fields)
                arrived.append(more)
                entries.append((more, at))
        store.settle(arriving(*arrived))
        if adds:
            add_up(engine)
    every = {one for _, at in entries for one in at} | {"rule_0", "rule_1/v_anna"}
    quotas = {quota_counter_id(one, measure): (one, measure) for one in every for measure in QUOTAS}
    found = {one.counter_id: one.amount for one in sums(engine, [(one, since) for one in sorted({*every, *quotas})])}
    by_quota = {name: counted(entries, one, since, measure) for name, (one, measure) in quotas.items()}
    assert found == {one: charged(entries, one, since) for one in every} | by_quota
    deltas, _, _ = changes(engine, 0, 1_000)
    for one in found:
        assert sum(d.amount_at(one) for d in deltas if d.started_at >= since) == found[one]
