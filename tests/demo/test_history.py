"""The ledger of `tokenweir demo --full`: its reports agree with the answers that it prints."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, select

from proxy.demo.history import DAY_S, FOUND_RESPONSE, Answers, configuration, write_history
from proxy.demo.tour import Deployment
from proxy.ledger.periods.closing import closed_activities
from proxy.ledger.schema.tables import ledger_entries
from proxy.ledger.settling.spend import sums
from proxy.reconciliation.reconcile import reconcile
from proxy.reports.entry_reader import EntryFilter, EntryReader
from proxy.reports.usage import UsageFilter, read_usage
from proxy.runtime.machine.ledger_stores import LedgerStores
from proxy.settings import load
from proxy.storage.database import reading

pytestmark = [pytest.mark.io, pytest.mark.thorough]

CONTOSOS = ("proj_patient-chat", "proj_back-office")


class Written:
    """The ledger of the demo, without its processes."""

    def __init__(self, folder: Path) -> None:
        deployment = Deployment(folder, "http://127.0.0.1:1", configuration())
        self.now = time.time()
        self.answers: Answers = write_history(deployment.config, deployment.environment)
        self.stores = LedgerStores.open(load(deployment.config, deployment.environment))

    @property
    def engine(self) -> Engine:
        return self.stores.engine


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    made = Written(tmp_path_factory.mktemp("demo"))
    yield made
    made.stores.close()


def test_the_ledger_is_right(written: Written) -> None:
    assert [one.name for one in reconcile(written.engine, clock=time.time) if not one.ok] == []


def test_usage_of_both_halves(written: Written) -> None:
    end = int(written.now // DAY_S * DAY_S) + DAY_S
    charged = []
    for begin in (end - 60 * DAY_S, end - 30 * DAY_S):
        wanted = UsageFilter(begin=begin, end=begin + 30 * DAY_S, bucket_s=DAY_S, is_total=True, projects=CONTOSOS)
        charged.append(sum(one.charge_nusd for one in read_usage(written.engine, wanted, 10)[0]))
    assert charged == [written.answers.contoso.before, written.answers.contoso.after]


def test_the_response_that_a_customer_asks_about(written: Written) -> None:
    entries = EntryReader(written.engine, EntryFilter(key_alias="chat-web")).new_entries()
    (found,) = [one for one in entries if one.provider_response_id == FOUND_RESPONSE]
    expected = (written.answers.found_exchange, "client_left", 77, 154)
    assert (found.exchange_id, found.outcome, found.events, found.completion_tokens) == expected


def test_the_keys_that_are_nearly_spent(written: Written) -> None:
    for alias, percent in written.answers.nearly_spent.items():
        key = written.stores.keys.one(alias)
        (spent,) = sums(written.engine, [(key.key_id, key.limits.window_start(key.created_at, written.now))])
        assert key.limits.budget_nusd is not None
        assert spent.amount * 100 // key.limits.budget_nusd == percent


def test_who_changed_the_price(written: Written) -> None:
    assert [(one.target, one.actor) for one in written.stores.audit_log.latest(10)] == [
        (written.answers.repriced, "ann@example.com")
    ]


def test_the_provider_that_fails(written: Written) -> None:
    table = ledger_entries.c
    failed = select(table.exchange_id).where(
        table.provider == written.answers.failing[0], table.outcome == "upstream_failed"
    )
    with reading(written.engine) as connection:
        assert len(connection.execute(failed).all()) == written.answers.failing[1] > 5


def test_the_closed_statement(written: Written) -> None:
    keys = [one.key_id for one in written.stores.keys.every() if one.project_id in CONTOSOS]
    with reading(written.engine) as connection:
        closed = closed_activities(connection, written.answers.month, keys)
    assert sum(one.activity.charged_nusd for one in closed) == written.answers.month_nusd > 0
