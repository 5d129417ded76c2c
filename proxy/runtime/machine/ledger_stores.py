"""The ledger of a deployment: entries, keys, accounts and audit log in one database, for commands and servers.

Invariants: any number of processes use them at the same time; the database is migrated before it is used.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import Engine

from proxy.billing.settlement import content_hash
from proxy.ledger.accounts.account_store import AccountStore
from proxy.ledger.accounts.audit_log import AuditLog
from proxy.ledger.accounts.key_store import KeyStore
from proxy.ledger.schema.migrate import migrate
from proxy.ledger.settling.store import LedgerStore
from proxy.runtime.machine.data_folder import key_pepper, ledger_url
from proxy.settings import Settings
from proxy.storage.database import open_engine
from proxy.storage.executor import BoundedExecutor, InThread

# More calls than a server makes at once, so that an integrity check of a minute delays no other call.
LEDGER_THREADS = 8


class LedgerStores:
    """The stores on one engine."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self._settings = settings
        self.engine = engine
        self.key_lifetime_max_s = settings.key_lifetime_max
        self.keys = KeyStore(self.engine, clock=time.time)
        self.accounts = AccountStore(self.engine, clock=time.time)
        self.acts = AuditLog(self.engine, clock=time.time)
        self.ledger = LedgerStore(self.engine, content_hash=content_hash, clock=time.time)

    @classmethod
    def open(cls, settings: Settings) -> LedgerStores:
        """Create or migrate the database first. Raises LedgerUnavailable, NewerDatabaseError."""
        url = ledger_url(settings)
        migrate(url)
        return cls(settings, open_engine(url))

    def pepper(self) -> bytes:
        """The secret that key digests are computed with."""
        return key_pepper(self._settings)

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()


@asynccontextmanager
async def open_ledger(settings: Settings) -> AsyncIterator[tuple[LedgerStores, InThread]]:
    """The stores of a server, and the threads for their calls. Raises LedgerUnavailable, NewerDatabaseError."""
    url = ledger_url(settings)
    stores = LedgerStores(settings, open_engine(url))  # connects at the first call
    threads = BoundedExecutor(LEDGER_THREADS, name="ledger")
    try:
        await threads.run(migrate, url)
        yield stores, threads.run
    finally:
        try:
            await asyncio.to_thread(threads.close)  # before the connections that its calls use
        finally:
            stores.close()
