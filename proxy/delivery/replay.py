"""Sends settled records again that the ledger has lost after a restore or a failover to a standby without the last
commits.

Invariants: the receipts of all kept records are compared with the ledger, never guessed from times. A repeated record
changes nothing if the ledger has it: settling is idempotent. The ledger's state at the last complete comparison is on
the disk, so that a restart in between repeats the comparison.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from proxy.delivery.shipper import ReceiptSource, parts
from proxy.foundation.outage import Outage, OutageListener
from proxy.journal.journal import Journal, Pending
from proxy.journal.kept import FOLDER
from proxy.journal.reader import settled_records
from proxy.ledger.settling.history import LedgerState, went_back
from proxy.ledger.settling.store import LedgerStore

# Two queries of a millisecond.
CHECK_S = 2.0
# An answer of the old server that was on its way may have confirmed records after the comparison: it is repeated then.
# No answer is waited for so long (`ANSWER_S_MAX` of storage/postgres.py).
AGAIN_S = 60.0
# Records that become pending again in one step: a millisecond of the event loop's time.
REVIVE_MAX = 100
# Ledgers archive old months, whose entries are then missing on purpose. A kept record is older than this only if its
# segment was never full.
AGE_S_MAX = 14 * 86_400.0

_log = logging.getLogger(__name__)


def lost_records(journal: Path, node: str, ledger: ReceiptSource) -> Iterator[list[Pending]]:
    """The settled records of the journal in this folder that the ledger lacks, newest segment first. Raises OSError."""
    since = time.time() - AGE_S_MAX
    for records in settled_records(journal):
        known: set[tuple[int, str | None]] = set()
        for part in parts([one.seq for one in records]):
            known |= ledger.receipts(node, part[0], part[-1])
        yield [
            one
            for one in records
            if (one.seq, one.exchange_id) not in known and (one.seq, None) not in known and _began_after(one, since)
        ]


def _began_after(one: Pending, since: float) -> bool:
    """True if the record's exchange began after `since`, or if this version cannot read the record."""
    try:
        return one.record.opened.started_at >= since
    except ValueError:
        return True


class Replayer:
    """Watches the ledger of one node. `run` it."""

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        ledger: LedgerStore,
        *,
        observer: OutageListener,
        in_thread: Callable[..., Awaitable[Any]],
        revived: Callable[[Sequence[Pending], Sequence[int]], None],
    ) -> None:
        """`folder`: the journal's. `revived`: called with records that the ledger has lost, and those of their seqs
        that are pending again."""
        self._folder = folder
        self._journal = journal
        self._ledger = ledger
        self._in_thread = in_thread
        self._revived = revived
        self._outage = Outage(observer)
        self._note = folder / FOLDER / "ledger.json"
        self._last = _noted(self._note)
        """the ledger's last known state; None: unknown"""
        self._again_at: float | None = None
        """the event loop's time of a repeated comparison; None: no comparison is due"""

    async def run(self) -> None:
        """Compare when the ledger went back, and delete kept segments that are old enough; until cancelled."""
        while True:
            await self._outage.attempt(self.check, None)
            await self._in_thread(self._journal.prune_kept)
            await asyncio.sleep(CHECK_S)

    async def check(self) -> None:
        """Compare if commits may be missing since the last check. Raises OSError, JournalUnavailable."""
        now = asyncio.get_running_loop().time()
        state: LedgerState = await self._in_thread(self._ledger.state)
        if self._last is not None and went_back(self._last, state):
            _log.warning("the ledger was replaced, or is older than before: comparing settled records with it")
            await self.replay()
            self._again_at = now + AGAIN_S
        elif self._again_at is not None and now >= self._again_at:
            await self.replay()
            self._again_at = None
        if self._again_at is None:
            with suppress(OSError):  # the next check writes a later one
                await self._in_thread(_write, self._note, state)
        self._last = state

    async def replay(self) -> int:
        """Send the lost records again, and return their number. Raises OSError, JournalUnavailable."""
        count = 0
        pages = lost_records(self._folder, self._journal.node.node_id, self._ledger)
        while (lost := await self._in_thread(next, pages, None)) is not None:
            for at in range(0, len(lost), REVIVE_MAX):
                count += self._revive(lost[at : at + REVIVE_MAX])
                await asyncio.sleep(0)
        if count:
            _log.warning("%d settled records were missing in the ledger and are sent again", count)
        else:
            _log.info("the ledger has all settled records that the journal keeps")
        return count

    def _revive(self, lost: Sequence[Pending]) -> int:
        seqs = self._journal.revive(lost)
        self._revived(lost, seqs)
        self._journal.woken.set()
        return len(seqs)


def _noted(note: Path) -> LedgerState | None:
    try:
        return msgspec.json.decode(note.read_bytes(), type=LedgerState)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _write(note: Path, state: LedgerState) -> None:
    note.parent.mkdir(mode=0o700, exist_ok=True)
    new = note.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(state))
    new.chmod(0o600)
    new.replace(note)
