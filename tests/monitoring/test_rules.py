"""Every rule in deploy/prometheus is what Prometheus takes, asks for series that are there, and every alert rings when
it should, has a paragraph of the runbook, and is silent where all is well."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.files import FILES, FOLDER, GOLDEN, RULES
from tests.support.prometheus import promtool

ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
WHO = '{job="tokenweir",instance="a:1"}'
# A minute between two samples. All is well: traffic, everything settled, nothing to be told.
WELL = {
    f"up{WHO}": "1x120",
    'tokenweir_build_info{version="1"}': "1x120",
    f"tokenweir_unsettled_exchanges{WHO}": "3x120",
    f"tokenweir_exchanges_in_flight{WHO}": "2x120",
    f"tokenweir_journal_pending_records{WHO}": "1x120",
    f"tokenweir_journal_oldest_pending_age_seconds{WHO}": "0.5x120",
    f"tokenweir_relay_overhead_seconds_count{WHO}": "0+60x120",
    f"tokenweir_configuration_reload_failed{WHO}": "0x120",
    f"tokenweir_journal_unwritten_records{WHO}": "0x120",
    f"tokenweir_journal_damage_total{WHO}": "0x120",
    "tokenweir_dead_letters": "0x120",
    "tokenweir_nodes": "2x120",
    "tokenweir_reconcile_timestamp_seconds": "0+60x120",
    'tokenweir_reconcile_differences{check="balances"}': "0x120",
    "tokenweir_budget_drift_usd": "0x120",
    'tokenweir_budget_rejections_total{reason="money"}': "0+1x120",
    'tokenweir_budget_rejections_total{reason="store_unavailable"}': "0x120",
    "tokenweir_leases_damaged_total": "0x120",
    "tokenweir_swept_exchanges_total": "0x120",
    'tokenweir_exchanges_total{provider="p",model="m",outcome="served"}': "0+60x120",
    'tokenweir_exchanges_total{provider="p",model="m",outcome="upstream_failed"}': "0+1x120",
    'tokenweir_tokens_total{provider="p",model="m",type="output",source="reported"}': "0+1000x120",
    'tokenweir_tokens_total{provider="p",model="m",type="output",source="estimated"}': "0+10x120",
}
ERRORS = 'tokenweir_estimate_error_ratio_bucket{provider="p",model="m",le="%s"}'
OVERHEAD = 'tokenweir_relay_overhead_seconds_bucket{job="tokenweir",instance="a:1",le="%s"}'
AT_A = {"job": "tokenweir", "instance": "a:1"}
OF_P, OF_M = {"provider": "p"}, {"provider": "p", "model": "m"}
# What is otherwise, the labels of the alert, and the summary.
RINGS: dict[str, tuple[dict[str, str | None], dict[str, str], str]] = {
    "TokenweirDown": ({f"up{WHO}": "0x120"}, AT_A, "a:1 (tokenweir) cannot be scraped."),
    "TokenweirNotScraped": (
        {'tokenweir_build_info{version="1"}': None}, {},
        "Prometheus scrapes no Tokenweir process: no other alert can fire.",
    ),
    "TokenweirUnsettled": (
        {f"tokenweir_unsettled_exchanges{WHO}": "402x120", f"tokenweir_journal_pending_records{WHO}": "400x120"}, AT_A,
        "400 exchanges of a:1 have ended and are not in the ledger: more than five minutes of traffic.",
    ),
    "TokenweirJournalOld": (
        {f"tokenweir_journal_oldest_pending_age_seconds{WHO}": "130x120"}, AT_A,
        "An exchange of a:1 has waited 2m 10s for the ledger.",
    ),
    "TokenweirReloadFailed": (
        {f"tokenweir_configuration_reload_failed{WHO}": "1x120"}, AT_A,
        "a:1 could not reload its configuration; the previous one applies.",
    ),
    "TokenweirPricesNotRefreshed": (
        {f"tokenweir_price_list_check_failed{WHO}": "1x120"}, {},
        "No newer price list could be used for an hour; the previous one applies.",
    ),
    "TokenweirPricesRefused": (
        {f"tokenweir_price_list_refused_models{WHO}": "3x120"}, {},
        "New prices of 3 models are refused; their earlier prices apply.",
    ),
    "TokenweirJournalUnwritten": (
        {f"tokenweir_journal_unwritten_records{WHO}": "4x120"}, AT_A,
        "The disk of a:1 refuses 4 records; they are in memory only.",
    ),
    "TokenweirJournalDamaged": (
        {f"tokenweir_journal_damage_total{WHO}": "1x120"}, AT_A,
        "The journal of a:1 was damaged in 1 places when it was opened.",
    ),
    "TokenweirDeadLetters": (
        {"tokenweir_dead_letters": "2x120"}, {}, "2 records could not be settled and are open dead letters."
    ),
    "TokenweirLeasesDamaged": (
        {"tokenweir_leases_damaged_total": "0x70 1x50"}, {}, "A lease of a dead proxy cannot be read."
    ),
    "TokenweirManyEstimates": (
        {'tokenweir_tokens_total{provider="p",model="m",type="output",source="estimated"}': "0+1000x120"}, OF_M,
        "50% of the output tokens of p/m are estimated.",
    ),
    "TokenweirEstimatesOff": (
        {ERRORS % "0.3": "0+8x120", ERRORS % "0.5": "0+10x120", ERRORS % "+Inf": "0+10x120"}, OF_M,
        "One estimate in ten of p/m would be off by more than 40%.",
    ),
    "TokenweirProviderFailing": (
        {'tokenweir_failed_attempts_total{provider="p",reason="failed"}': "0+61x120"}, OF_P,
        "50.82% of the attempts at p fail.",
    ),
    "TokenweirBreakerOpen": (
        {'tokenweir_provider_breaker{provider="p",state="open"}': "1x120"}, OF_P,
        "p gets no requests: its circuit breaker is open.",
    ),
    "TokenweirBudgetRefusals": (
        {'tokenweir_budget_rejections_total{reason="money"}': "0+60x120"}, {},
        "50% of all valid requests are refused by a limit.",
    ),
    "TokenweirBudgetStoreUnavailable": (
        {'tokenweir_budget_rejections_total{reason="store_unavailable"}': "0+1x120"}, {},
        "Requests are refused because the budget store is unavailable.",
    ),
    "TokenweirUnaccounted": (
        {f"tokenweir_unsettled_exchanges{WHO}": "4x120"}, AT_A,
        "By its counters, 1 exchanges of a:1 are neither running, nor waiting, nor in the ledger.",
    ),
    "TokenweirLedgerDiffers": (
        {'tokenweir_reconcile_differences{check="balances"}': "3x120"}, {"check": "balances"},
        "The integrity check of the ledger found 3 differences: balances.",
    ),
    "TokenweirBudgetDrift": (
        {"tokenweir_budget_drift_usd": "-0.25x120"}, {}, "Budget counters differ from the ledger by 0.25 USD."
    ),
    "TokenweirNotAudited": (
        {"tokenweir_reconcile_timestamp_seconds": "0x120"}, {},
        "No integrity check of the ledger has ended for more than an hour.",
    ),
    "TokenweirUnpriced": (
        {'tokenweir_unpriced_total{provider="p",model="m"}': "_x70 1x50"}, OF_M,
        "Exchanges of p/m were served and billed nothing: no price is known.",
    ),
    "TokenweirUnpricedUnits": (
        {'tokenweir_unpriced_units_total{provider="p",unit="tier:priority"}': "_x70 1x50"},
        OF_P | {"unit": "tier:priority"},
        "Exchanges of p used tier:priority, which has no price.",
    ),
    "TokenweirUnreadUsage": (
        {'tokenweir_unread_usage_total{provider="p",path="usage.ticks"}': "_x70 1x50"}, OF_P | {"path": "usage.ticks"},
        "p reports usage.ticks, which this version does not read: it may cost something that is not billed.",
    ),
    "TokenweirRefutedUsage": (
        {'tokenweir_contradicted_usage_total{provider="p",model="m",doubt="refuted"}': "_x70 1x50"}, OF_M,
        "p reports counts for m that its answers refute.",
    ),
    "TokenweirSlow": (
        {OVERHEAD % "0.05": "0+0x120", OVERHEAD % "0.1": "0+60x120", OVERHEAD % "+Inf": "0+60x120"}, AT_A,
        "One request in a hundred waits 99.5ms in a:1 before it goes up.",
    ),
    "TokenweirProxyDied": (
        {"tokenweir_swept_exchanges_total": "0x110 5x10"}, {},
        "A proxy did not renew its lease; its exchanges were settled from the lease.",
    ),
}  # fmt: skip


def case(world: dict[str, str | None], expected: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """One of promtool's tests, two hours in."""
    series = [{"series": one, "values": values} for one, values in {**WELL, **world}.items() if values is not None]
    asked = [{"eval_time": "115m", "alertname": name, "exp_alerts": alerts} for name, alerts in expected.items()]
    return {"interval": "1m", "input_series": series, "alert_rule_test": asked}


def rings(alert: str) -> dict[str, Any]:
    """It rings where something is otherwise."""
    world, labels, summary = RINGS[alert]
    rule = ALERTS[alert]
    notes = {"summary": summary, "runbook": rule["annotations"]["runbook"]}
    expected = {"exp_labels": {**labels, **rule["labels"]}, "exp_annotations": notes}
    return case(world, {alert: [expected]})


@pytest.mark.external
def test_every_alert_rings_when_it_should_and_none_where_all_is_well(tmp_path: Path) -> None:
    assert set(RINGS) == set(ALERTS), "each has a case"
    tests = [case({}, {alert: [] for alert in RINGS}), *map(rings, RINGS)]
    written = {"rule_files": list(map(str, FILES)), "evaluation_interval": "5m", "tests": tests}
    file = tmp_path / "rules.test.yml"
    file.write_text(yaml.safe_dump(written, width=1000))
    promtool("test", "rules", str(file))


@pytest.mark.external
def test_prometheus_takes_the_rules() -> None:
    promtool("check", "rules", *map(str, FILES))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_rules_ask_for_series_that_are_there(rule: dict[str, Any]) -> None:
    made = {one["record"] for one in RULES if "record" in one}
    asked = set(re.findall(r"\b(?:[a-z]+:)?tokenweir[a-z0-9_:]+", re.sub(r'job=~"[^"]+"', "", rule["expr"])))
    there = set(re.findall(r"^(tokenweir_\w+)[{ ]", GOLDEN.read_text(), re.MULTILINE)) | made
    assert asked - there == set()


def test_every_alert_has_its_paragraph_and_every_paragraph_its_alert() -> None:
    paragraphs = dict(re.findall(r"^## (\w+)\n(.{80,}?)(?=^## |\Z)", (FOLDER / "RUNBOOK.md").read_text(), re.M | re.S))
    assert set(paragraphs) == set(ALERTS)
    for name, rule in ALERTS.items():
        assert rule["annotations"]["runbook"] == f"deploy/prometheus/RUNBOOK.md#{name.lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning")
