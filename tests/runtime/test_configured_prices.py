"""Which changes of the configuration's prices are in the audit log, and by whom."""

from __future__ import annotations

import getpass
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import Engine

from proxy.ledger.accounts.audit_log import AuditLog
from proxy.runtime.machine import configured_prices
from proxy.runtime.machine.configured_prices import changes, prices_of, record_changes, request_reload
from proxy.settings import Settings, parse
from proxy.storage.database import LedgerUnavailable, open_engine

BASE: dict[str, Any] = {"input": 3, "output": 15}


def settings(folder: Path, models: dict[str, Any], **more: Any) -> Settings:
    document = {
        "providers": {name: {"base_url": "http://127.0.0.1:1/v1"} for name in ("tera", "electron")},
        "models": {name: {"provider": "tera", **fields} for name, fields in models.items()},
        "data_dir": str(folder),
        **more,
    }
    return parse(yaml.safe_dump(document), env={}, folder=folder)


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        ({"price": BASE}, {"price": BASE}, {}),
        ({"price": BASE}, {"price": {"input": 3.6, "output": 15}}, {"input": "3 → 3.6"}),
        ({"price": BASE}, {"price": {**BASE, "cached_input": 1}}, {"cached_input": "none → 1"}),
        ({"price": BASE}, {"price": BASE, "cost": {"input": 2, "output": 9}},
         {"cost at tera: input": "none → 2", "cost at tera: output": "none → 9"}),
        ({"price": BASE}, {"price": {**BASE, "service_tiers": {"flex": {"input": 1, "output": 7}}}},
         {"input (flex)": "none → 1", "output (flex)": "none → 7"}),
        ({"price": BASE}, {"price": {**BASE, "multipliers": {"speed:fast": 6}}}, {"multiplier speed:fast": "none → 6"}),
        ({"price": BASE}, {"price": {**BASE, "changes": {"2026-12-01": {"input": 4, "output": 15}}}},
         {"input from 2026-12-01 00:00 UTC": "none → 4", "output from 2026-12-01 00:00 UTC": "none → 15"}),
    ],
)  # fmt: skip
def test_changes_of_a_model(tmp_path: Path, before: Any, now: Any, found: dict[str, str]) -> None:
    old, new = (prices_of(settings(tmp_path, {"m": fields})) for fields in (before, now))
    assert changes(old, new) == ({"m": found} if found else {})


def test_models_and_rules_that_come_and_go(tmp_path: Path) -> None:
    rules = {"acme": {"organizations": ["acme"], "multiply": "0.9"}}
    old = prices_of(settings(tmp_path, {"a": {"price": BASE}}))
    new = prices_of(settings(tmp_path, {"b": {"price": BASE}}, price_rules=rules))
    assert changes(old, new) == {
        "a": {"input": "3 → none", "output": "15 → none"},
        "b": {"input": "none → 3", "output": "none → 15"},
        "price_rules.acme": {"organizations": "none → acme", "multiply": "none → 0.9"},
    }


@pytest.mark.io
class TestAuditLog:
    @pytest.fixture
    def audit_log(self, engine: Engine) -> AuditLog:
        return AuditLog(engine, clock=time.time)

    def acts(self, audit_log: AuditLog) -> list[tuple[Any, ...]]:
        return [(one.actor, one.origin, one.action, one.target, one.details) for one in audit_log.latest(10)]

    def test_the_first_configuration_is_no_change(self, tmp_path: Path, audit_log: AuditLog) -> None:
        record_changes(settings(tmp_path, {"m": {"price": BASE}}), audit_log)
        assert self.acts(audit_log) == []

    def test_by_the_operator_who_asked_for_the_reload(self, tmp_path: Path, audit_log: AuditLog) -> None:
        record_changes(settings(tmp_path, {"m": {"price": BASE}}), audit_log)
        dearer = settings(tmp_path, {"m": {"price": {"input": 3, "output": 18}}})
        request_reload(tmp_path, "ann")
        for _ in range(2):
            record_changes(dearer, audit_log)
        asked = ("ann", socket.gethostname(), "prices.change", "m", {"output": "15 → 18"})
        assert self.acts(audit_log) == [asked]
        record_changes(settings(tmp_path, {"m": {"price": BASE}}), audit_log)  # at a start: nobody asked
        started = (getpass.getuser(), socket.gethostname(), "prices.change", "m", {"output": "18 → 15"})
        assert self.acts(audit_log) == [started, asked]

    def test_a_request_of_long_ago_is_nobodys(
        self, tmp_path: Path, audit_log: AuditLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        record_changes(settings(tmp_path, {"m": {"price": BASE}}), audit_log)
        request_reload(tmp_path, "ann")
        monkeypatch.setattr(configured_prices, "REQUEST_S", 0.0)
        record_changes(settings(tmp_path, {"x": {"price": BASE}}), audit_log)
        assert {act[0] for act in self.acts(audit_log)} == {getpass.getuser()}

    def test_several_machines_record_a_change_once(self, tmp_path: Path, audit_log: AuditLog) -> None:
        for price in (BASE, {"input": 4, "output": 15}):
            for machine in ("one", "two"):
                (tmp_path / machine).mkdir(exist_ok=True)
                record_changes(settings(tmp_path / machine, {"m": {"price": price}}), audit_log)
        assert [act[3:] for act in self.acts(audit_log)] == [("m", {"input": "3 → 4"})]

    def test_an_outage_of_the_ledger_loses_no_change(self, tmp_path: Path, audit_log: AuditLog) -> None:
        record_changes(settings(tmp_path, {"m": {"price": BASE}}), audit_log)
        dearer = settings(tmp_path, {"m": {"price": {"input": 3, "output": 18}}})
        away = AuditLog(open_engine("postgresql://nobody@127.0.0.1:1/none"), clock=time.time)
        with pytest.raises(LedgerUnavailable):
            record_changes(dearer, away)
        record_changes(dearer, audit_log)
        assert [act[3:] for act in self.acts(audit_log)] == [("m", {"output": "15 → 18"})]

    def test_very_many_models_are_one_entry(self, tmp_path: Path, audit_log: AuditLog) -> None:
        many = {f"m{number}": {"price": BASE} for number in range(configured_prices.OPERATIONS_MAX + 1)}
        record_changes(settings(tmp_path, {"x": {"price": BASE}}), audit_log)
        record_changes(settings(tmp_path, many), audit_log)
        assert [act[3:] for act in self.acts(audit_log)] == [(None, {"models": len(many) + 1})]
