"""Imported last by the process that others are copies of: what each would make is made, and stays as it is. The
copies' collectors need not look at it, nor copy its pages."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

from proxy import cli
from proxy.billing.settlement import content_hash
from proxy.gateway.upstream import client
from proxy.http import server
from proxy.ledger.settling.store import LedgerStore
from proxy.metering.dialect import NAME
from proxy.metering.dialects import DIALECTS
from proxy.storage.database import open_engine, sqlite_url
from tests.support.made_once import share
from tests.support.tokenweir import TRUSTING_NOBODY

share(setattr)
for command in cli.COMMANDS:
    cli._parser((command,))
with patch.dict(os.environ, TRUSTING_NOBODY):
    client.UpstreamClient()
with tempfile.NamedTemporaryFile() as file:
    for url in (sqlite_url(Path(file.name)), "postgresql://nobody@127.0.0.1:9/none"):
        engine = open_engine(url)
        LedgerStore(engine, content_hash=content_hash, clock=time.time)
        engine.dispose()
for dialect in DIALECTS:
    for path in dialect.paths:
        server._matching(path.partition(NAME)[0])
gc.freeze()
gc.enable()
