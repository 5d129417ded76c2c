"""The ledger and the keys for a command. Law: it works whether or not a server runs on the same ledger."""

from __future__ import annotations

import time

from proxy.billing.settlement import content_hash
from proxy.compose.folder import Folder, key_pepper, ledger_url
from proxy.ledger.acts import Acts
from proxy.ledger.database import open_engine
from proxy.ledger.key_store import KeyStore
from proxy.ledger.migrate import migrate
from proxy.ledger.store import LedgerStore
from proxy.settings import Settings


class Store:
    """The ledger and the keys of a deployment."""

    def __init__(self, settings: Settings) -> None:
        """Make or migrate it first. Raises LedgerUnavailable, NewerDatabaseError."""
        self._settings = settings
        Folder(settings.data_dir).make()
        migrate(ledger_url(settings))
        self.engine = open_engine(ledger_url(settings))
        self.key_lifetime_max_s = settings.key_lifetime_max
        self.keys = KeyStore(self.engine, clock=time.time)
        self.acts = Acts(self.engine, clock=time.time)
        self.ledger = LedgerStore(self.engine, content_hash=content_hash, clock=time.time)

    def pepper(self) -> bytes:
        """What keys are hashed with."""
        return key_pepper(self._settings)

    def close(self) -> None:
        """Let go of the database."""
        self.engine.dispose()
