"""Checks the ledger while it is in use. Invariant: a check only reads; differences are logged and measured, never
corrected."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial

from sqlalchemy import Engine

from proxy.foundation.outage import Outage, OutageLog
from proxy.ledger.settling.dead_letters import count_open
from proxy.reconciliation.reconcile import GRACE_S, CheckFinding, reconcile
from proxy.runtime.machine.records_in_flight import read_records_in_flight
from proxy.settings import Settings
from proxy.storage.executor import InThread
from proxy.telemetry.metrics import Metrics

# Each check reads what was settled since the one before the last; `tokenweir reconcile` reads everything.
CHECK_S = 600.0
# It counts the first rows of an index; an alarm about money need not come sooner.
LETTERS_S = 60.0

_log = logging.getLogger(__name__)


async def check_integrity(settings: Settings, engine: Engine, metrics: Metrics, in_thread: InThread) -> None:
    """Check every CHECK_S until cancelled. An outage is not reported as a difference."""
    outage = Outage(OutageLog("checking the ledger"))
    while True:
        await asyncio.sleep(CHECK_S)
        try:
            in_flight = await read_records_in_flight(settings)
            since = time.time() - 2 * CHECK_S - GRACE_S
            check = partial(reconcile, engine, clock=time.time, since=since, in_flight=in_flight)
            findings = await in_thread(check)  # it may take a minute
        except OSError as error:
            outage.began(error)
        else:
            outage.over()
            _report(findings, metrics)


async def count_letters(engine: Engine, metrics: Metrics, in_thread: InThread) -> None:
    """Count the open dead letters every LETTERS_S until cancelled. During an outage the gauge keeps its value."""
    outage = Outage(OutageLog("counting dead letters"))
    while True:
        try:
            metrics.ledger.dead_letters.set(await in_thread(count_open, engine))
        except OSError as error:
            outage.began(error)
        else:
            outage.over()
        await asyncio.sleep(LETTERS_S)


def _report(findings: list[CheckFinding], metrics: Metrics) -> None:
    for finding in findings:
        metrics.ledger.differences.labels(finding.name).set(finding.differences)
        if not finding.ok:
            _log.error(
                "integrity check: %d differences: %s; first: %s",
                finding.differences,
                finding.description,
                finding.examples[:1],
            )
    metrics.ledger.audited_at.set_to_current_time()
