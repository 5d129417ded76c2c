"""The ledger of a deployment: entries, keys, accounts and audit log in one database, for commands and servers.

Invariants: any number of processes use these stores at the same time. No process uses a ledger of an earlier version: a
command is refused, a server waits until the database can be reached and `tokenweir migrate` has run. A SQLite file is
upgraded by the first process that opens it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

from sqlalchemy import Engine

from proxy.billing.settlement import content_hash
from proxy.foundation.outage import Outage, OutageLog
from proxy.ledger.accounts.account_store import AccountStore
from proxy.ledger.accounts.audit_log import AuditLog
from proxy.ledger.accounts.key_store import KeyStore
from proxy.ledger.grants.store import GrantStore
from proxy.ledger.limit_list import LimitList
from proxy.ledger.limit_rules import RuleStore
from proxy.ledger.schema.migrate import OutdatedLedgerError, require_current
from proxy.ledger.schema.partitions import make_partitions
from proxy.ledger.settling.clock import level_clocks
from proxy.ledger.settling.store import LedgerStore
from proxy.ledger.stored_objects.batches import BatchStore
from proxy.ledger.stored_objects.files import FileStore
from proxy.reports.dimensions import ValueReader
from proxy.runtime.machine.data_folder import key_pepper, ledger_url
from proxy.runtime.machine.waiting import Waiting, until_there
from proxy.settings import Settings
from proxy.storage.database import LedgerUnavailable, open_engine
from proxy.storage.executor import BoundedExecutor, InThread

# More calls than a server makes at once, so that an integrity check of a minute delays no other call.
LEDGER_THREADS = 8
# Partitions are made months ahead: a failed day is no harm.
PARTITIONS_S = 86_400.0
# The entry of a grant that begins or ends is posted about this long afterwards.
GRANTS_S = 2.0

_log = logging.getLogger(__name__)


class LedgerStores:
    """The stores on one engine."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self._settings = settings
        self.engine = engine
        self.key_lifetime_max_s = settings.key_lifetime_max
        self.keys = KeyStore(self.engine, clock=time.time)
        self.accounts = AccountStore(self.engine, clock=time.time)
        self.rules = RuleStore(self.engine, clock=time.time)
        self.limits = LimitList(self.rules, self.keys, self.accounts)
        self.audit_log = AuditLog(self.engine, clock=time.time)
        self.ledger = LedgerStore(self.engine, content_hash=content_hash, clock=time.time)
        self.grants = GrantStore(self.engine, self.ledger, clock=time.time)
        self.files = FileStore(self.engine)
        self.batches = BatchStore(self.engine)

    @classmethod
    def open(cls, settings: Settings) -> LedgerStores:
        """Open the stores for a command. Raises LedgerUnavailable, OutdatedLedgerError, NewerDatabaseError."""
        engine = open_engine(ledger_url(settings))
        try:
            require_current(engine)
            # Without a worker, no other process does it. A replica cannot be written, and is read up to its own time.
            with suppress(LedgerUnavailable):
                level_clocks(engine)
        except BaseException:
            engine.dispose()
            raise
        return cls(settings, engine)

    def pepper(self) -> bytes:
        """The secret for computing key digests."""
        return key_pepper(self._settings)

    def end_user_pepper(self) -> bytes | None:
        """The secret for computing stored end users; None: they are stored as they were sent."""
        return self.pepper() if self._settings.dimensions.hash_end_users else None

    def dimension_values(self) -> ValueReader:
        """The values of dimensions, for reports and filters."""
        return ValueReader(self.engine, self.end_user_pepper())

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()


@asynccontextmanager
async def open_ledger(settings: Settings, waiting: Waiting) -> AsyncIterator[tuple[LedgerStores, InThread]]:
    """Open the stores of a server, and the threads for their calls, as soon as the ledger can be reached and has this
    version. Raises NewerDatabaseError; LedgerUnavailable, if it is a file of this machine."""
    stores = LedgerStores(settings, open_engine(ledger_url(settings)))  # connects at the first call
    threads = BoundedExecutor(LEDGER_THREADS, name="ledger")
    try:
        absent = (OutdatedLedgerError,) if settings.ledger is None else (OutdatedLedgerError, LedgerUnavailable)
        check = partial(threads.run, require_current, stores.engine)
        await until_there(check, waiting, absent=absent, what="the ledger of this version")
        yield stores, threads.run
    finally:
        try:
            await asyncio.to_thread(threads.close)  # before the connections that its calls use
        finally:
            stores.close()


async def keep_partitions(engine: Engine, in_thread: InThread) -> None:
    """Create the partitions of the coming months on Postgres, until cancelled."""
    while True:
        try:
            await in_thread(make_partitions, engine, time.time())
        except LedgerUnavailable as error:
            _log.warning("partitions of the coming months cannot be created; next try tomorrow: %s", error)
        await asyncio.sleep(PARTITIONS_S)


async def post_grants(grants: GrantStore, in_thread: InThread) -> None:
    """Post the entries of grants that begin or end, until cancelled."""
    outage = Outage(OutageLog("posting the entries of grants"))
    while True:
        if not await outage.attempt(partial(in_thread, grants.post_due), False):
            await asyncio.sleep(GRANTS_S)
