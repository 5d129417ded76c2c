"""The ledger and the keys of a deployment, for a command and for a server. Invariant: any number of processes use them
at the same time; the database is of this version before any of them does."""

from __future__ import annotations

import time

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

# Of a server: more than it asks of the ledger at once, so that an audit that takes a minute holds up nothing.
LEDGER_THREADS = 8


class CommandStore:
    """The ledger and the keys of a deployment."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        """`engine`: of a database that is migrated already."""
        self._settings = settings
        self.engine = engine
        self.key_lifetime_max_s = settings.key_lifetime_max
        self.keys = KeyStore(self.engine, clock=time.time)
        self.accounts = AccountStore(self.engine, clock=time.time)
        self.acts = AuditLog(self.engine, clock=time.time)
        self.ledger = LedgerStore(self.engine, content_hash=content_hash, clock=time.time)

    @classmethod
    def open(cls, settings: Settings) -> CommandStore:
        """Make or migrate the database first. Raises LedgerUnavailable, NewerDatabaseError."""
        url = ledger_url(settings)
        migrate(url)
        return cls(settings, open_engine(url))

    def pepper(self) -> bytes:
        """What keys are hashed with."""
        return key_pepper(self._settings)

    def close(self) -> None:
        """Let go of the database."""
        self.engine.dispose()
