"""A console whose statements are sent to a mail server of the test's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from proxy.metering.usage import Usage
from proxy.reports.usage import id_from
from tests.console.entries import MONTH, SEPTEMBER_10, use_september
from tests.console.stand import CONFIG, MAIL_PASSWORD, Stand
from tests.ledger.entries import a_ledger
from tests.ledger.priced_entries import a_real_entry, settle
from tests.support.certificates import Authority
from tests.support.smtp_server import SmtpServer

SELLER = "Weir & Söhne GmbH"
CUSTOMER = "accounts@acme.example"


@contextmanager
def mailing(folder: Path, *, email: str = CUSTOMER, port: int | None = None) -> Iterator[tuple[Stand, SmtpServer]]:
    """September is closed; the statements of `default` go to `email`. `port`: of the mail server in the settings."""
    folder = folder / "mailing"
    authority = Authority(folder)
    server = SmtpServer(starttls=authority.server_context(authority.issue("server")), user=("billing", MAIL_PASSWORD))
    mail = {
        "host": "localhost", "port": port or server.port, "ca_file": str(authority.file), "username": "billing",
        "password": "${MAIL}", "from": "billing@weir.example", "reply_to": "help@weir.example",
        "bcc": "copy@weir.example",
    }  # fmt: skip
    customers = {"default": {"legal_name": "Acme Ltd", **({"email": email} if email else {})}}
    statement = {"seller": SELLER, "terms": "IBAN DE02", "due_days": 14, "customers": customers, "mail": mail}
    engine = a_ledger(folder)
    stand = Stand(folder, engine, f"{CONFIG}statement: {json.dumps(statement)}\n")
    try:
        use_september(stand)
        many = a_real_entry(9, started_at=SEPTEMBER_10, usage=Usage(90_000_000, 0, 2_500_000))
        settle(engine, replace(many, exchange_id=f"{id_from(SEPTEMBER_10)}7009-8000-000000000000"), node=None)
        stand.post("/v1/periods/close", {"month": MONTH})
        yield stand, server
    finally:
        stand.close()
        server.close()
        engine.dispose()
