"""Other files of 0.1 in a data folder, and what it sent to others' servers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proxy.billing.entries import LedgerEntry
from proxy.billing.limits import Limits
from proxy.billing.money import nusd_from_usd
from proxy.budgets.thresholds import Alert, Subject
from proxy.foundation.secret import Secret
from proxy.keys import secrets
from proxy.ledger.accounts.owners import Owner
from proxy.metering.estimator.estimate import Estimator
from proxy.metering.usage import Evidence, PromptEvidence
from proxy.reports.export import ExportedEntry
from proxy.runtime.machine.data_folder import DataFolder
from proxy.settings.sinks import CustomerSource as Customer
from proxy.sinks.alert_webhook import body_of
from proxy.sinks.kinds import SINKS, MeteredQuantity, format_of
from tests.golden.reading import BEGAN, HERE, exchange_id, golden_entries, golden_json

BODIES = golden_json("bodies.json")


def test_where_files_lie(tmp_path: Path) -> None:
    for folder, own in ((DataFolder(tmp_path), tmp_path), (DataFolder(tmp_path, 2), tmp_path / "worker-2")):
        assert folder.journal == own / "journal"
        assert folder.progress == own / "progress.table"
        assert folder.estimator == own / "estimator.json"


def test_what_was_learned_is_known() -> None:
    exported = golden_json("estimator.json")
    estimator = Estimator.restore(exported)
    assert json.loads(json.dumps(estimator.export())) == exported
    found = estimator.completion(
        "electron/electron-2", Evidence(text_events=30, chars_latin=140), completion_tokens_max=None, bytes_seen=9_999
    )
    assert (found.tokens, found.expected_error, found.hidden) == (47, 0.117, 11)
    assert estimator.prompt_tokens("electron/electron-2", PromptEvidence(messages=1, chars_latin=400)) == 204


def test_the_pepper(tmp_path: Path) -> None:
    shutil.copy(HERE / "pepper", tmp_path)
    pepper = secrets.load_pepper(tmp_path / "pepper")
    assert pepper == b"golden pepper of thirty-two byte"
    digest = "e7989db4d973557602802a87feda9fa80b8db8f81dd916859ac1c58da241a3bc"
    assert secrets.digest("tw-" + "g" * 43, pepper).hex() == digest


def an_entry(name: str) -> LedgerEntry:
    """The one that the bodies are about."""
    number, kind = {"usage": (3, "usage"), "adjustment": (8, "adjustment")}.get(name, (0, "credit"))
    found = [one for one in golden_entries() if one["kind"] == kind]
    one = next(one for one in found if not number or one["exchange_id"] == exchange_id(number))
    money = {field: None if one[field] is None else nusd_from_usd(one[field]) for field in ("cost_usd", "charge_usd")}
    return msgspec.convert({**one, **money, "started_at": BEGAN + number}, LedgerEntry)


@pytest.mark.parametrize("kind", sorted(BODIES.keys() - {"alert"}))
def test_sinks_are_sent_the_same(kind: str) -> None:
    name, _, metered = kind.partition("/")
    settings = SINKS[name](
        name="golden", kind=name, url="https://sink.invalid", secret=Secret("golden signing secret"),
        subject=Customer.PROJECT, customers={"proj_golden": "cus_1"},
        **({"metered": MeteredQuantity(metered)} if name == "stripe" else {}),
    )  # fmt: skip
    shape = format_of(settings)
    owner = Owner("key_golden", "häuser", "proj_golden", "ops", "org_golden", "Größe AG")
    sent: list[dict[str, Any]] = []
    for of in ("usage", "adjustment", "credit"):
        for event in shape.events(ExportedEntry(an_entry(of), BEGAN + 900, owner)):
            one = shape.request([event], BEGAN + 901)
            headers = {name: value for name, value in one.headers.items() if not name.startswith("webhook-")}  # of 0.2
            sent.append({"of": of, "url": one.url, "headers": headers, "body": one.body.decode()})
    assert sent == BODIES[kind]


def test_alerts_are_sent_the_same() -> None:
    alert = Alert(
        "alert_" + "0" * 32, "key_golden", 80, 1_792_800_000.0, 4_000_000_000, 5_000_000_000, BEGAN, "open", 0, BEGAN,
        None,
    )  # fmt: skip
    limits = Limits(budget_nusd=5_000_000_000, budget_window="calendar_month")
    assert body_of(alert, Subject("key_golden", "key", "häuser", limits, BEGAN)).decode() == BODIES["alert"]
