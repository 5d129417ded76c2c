"""Moves a deployment's ledger from its SQLite file to Postgres.

Invariants: no proxy uses the file or starts to; `tokenweir reconcile` finds nothing in the target that it does not find
in the source. Records that the journals still have are settled in the target by the next proxy with the same data
folder, once each: the copied receipts say which ones the ledger has.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine

from proxy.journal.reader import unsettled_exchanges
from proxy.journal.segment import lock
from proxy.ledger.schema.migrate import migrate
from proxy.ledger.settling.spend import settled
from proxy.ledger.transfer.comparing import DifferentLedgerError, LedgerSums
from proxy.ledger.transfer.copying import Progress, copy_ledger, require_current
from proxy.reconciliation.reconcile import CheckFinding, reconcile
from proxy.runtime.machine.data_folder import DataFolder
from proxy.storage.database import LedgerUnavailable, opened, sqlite_url, writing


class LedgerInUseError(ValueError):
    """A proxy uses the ledger."""


@dataclass(frozen=True, slots=True)
class MovedLedger:
    """The result of a move."""

    sums: LedgerSums
    faults: list[CheckFinding]
    """findings of `reconcile` in the source; those in the target are the same"""
    unsettled: int
    """exchanges in the journals of the source's folder that are not settled yet"""


def move_ledger(file: Path, url: str, progress: Progress, say: Callable[[str], None]) -> MovedLedger:
    """Copy the ledger in `file` to Postgres at `url`, and check the copy. Another call continues or repeats it.

    Raises LedgerInUseError, DifferentLedgerError, OutdatedLedgerError, LedgerUnavailable and what `migrate` raises.
    """
    if not file.is_file():
        raise LedgerUnavailable(f"there is no ledger at {file}")
    with (
        _unused(file.parent),
        opened(sqlite_url(file)) as source,
        opened(url) as target,
        writing(source) as snapshot,
    ):
        require_current(snapshot)
        migrate(url, say)
        sums = copy_ledger(snapshot, target, progress, say)
        faults = _faults(source, target, progress)
        return MovedLedger(sums, faults, _unsettled(file.parent, source))


def _journals(data_dir: Path) -> list[Path]:
    alone = DataFolder(data_dir)
    return [folder.journal for folder in (alone, *alone.left_behind()) if folder.journal.is_dir()]


@contextmanager
def _unused(data_dir: Path) -> Iterator[None]:
    """Lock the journals of a data folder, as each proxy does. Raises LedgerInUseError."""
    with ExitStack() as locks:
        for journal in _journals(data_dir):
            held = lock(journal)
            if held is None:
                raise LedgerInUseError(f"a proxy runs with the data folder {data_dir}: stop it first")
            locks.callback(os.close, held)
        yield


def _faults(source: Engine, target: Engine, progress: Progress) -> list[CheckFinding]:
    """The findings of `reconcile` that both ledgers have. Raises DifferentLedgerError for one that only the target
    has."""

    def checking(name: str, done: int, total: int) -> None:
        progress(f"checking {name}", "checks", done, total)

    faults = [finding for finding in reconcile(target, clock=time.time, progress=checking) if not finding.ok]
    if faults:
        known = {(one.name, one.differences) for one in reconcile(source, clock=time.time, progress=checking)}
        for fault in faults:
            if (fault.name, fault.differences) not in known:
                raise DifferentLedgerError(f"reconcile: {fault.name}: {fault.differences} differ in the target")
    return faults


def _unsettled(data_dir: Path, source: Engine) -> int:
    found = {one for journal in _journals(data_dir) for one in unsettled_exchanges(journal)}
    return len(found - settled(source, found))
