"""Statements are sent by the console's API to a real mail server, as by `tokenweir statement --send`."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from proxy.billing.period import month_from
from proxy.ledger.accounts.audit_log import Actor, AuditLog
from proxy.reports import statement_mail
from proxy.reports.statement import StatementOwner, read_statement
from tests.console.entries import MONTH
from tests.console.mailing import CUSTOMER, SELLER, mailing
from tests.console.stand import MAIL_PASSWORD, READER, WORKER, Stand
from tests.support.net import free_port
from tests.support.smtp_server import SmtpServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.io

NAMED = {"scope_id": "org_default", "month": MONTH}


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[Stand, SmtpServer]]:
    with mailing(tmp_path) as made:
        yield made


def sent(stand: Stand, **more: Any) -> Any:
    return stand("POST", "/v1/statements/send", {**NAMED, **more})


def line(stand: Stand) -> Any:
    return stand.get(f"/v1/statements?month={MONTH}")["data"][0]


def test_a_statement_is_sent_and_the_audit_log_says_so(both: tuple[Stand, SmtpServer]) -> None:
    """Before: an operator attached the files by hand, and nothing recorded that."""
    stand, server = both
    preview = stand.get(f"/v1/statements/mail?scope_id=org_default&month={MONTH}", key=READER)
    assert (preview["to"], preview["sent"], server.received) == (CUSTOMER, None, [])
    assert (line(stand)["state"], line(stand)["sent_at"]) == ("final", None)
    done = sent(stand)
    assert done.status == 200, done
    (one,) = server.received
    assert (one.sender, one.recipients) == ("billing@weir.example", [CUSTOMER, "copy@weir.example"])
    assert (one.is_encrypted, one.user) == (True, "billing")
    message = one.message
    assert (message["To"], message["Reply-To"], message["Bcc"]) == (CUSTOMER, "help@weir.example", None)
    (sender,) = message["From"].addresses
    assert (sender.display_name, sender.addr_spec) == (SELLER, "billing@weir.example")
    assert message["Subject"] == preview["subject"]
    assert f"{preview['number']} for September 2026: $" in preview["subject"]
    body, attached = message.get_body(), next(message.iter_attachments())
    assert body is not None
    assert body.get_content().splitlines() == preview["text"].splitlines()
    assert preview["text"].startswith("Amount due: $12.73\nPlease pay by ")
    assert f"Due: {line(stand)['due_on']}" in preview["text"]
    assert (attached.get_filename(), preview["attachment"]) == (f"statement-{preview['number']}.pdf",) * 2
    assert attached.get_content()[:5] == b"%PDF-"
    shown = line(stand)
    assert (shown["state"], shown["sent_to"], shown["amount_due_usd"]) == ("sent", CUSTOMER, preview["amount_due_usd"])
    act = stand.get("/v1/audit?action=statement.send")["data"][0]
    assert (act["actor"], act["target"], act["result"]) == ("admin", f"{MONTH}-org_default", "done")
    whole = stand.get(f"/v1/statements/org_default?month={MONTH}")
    assert act["details"] == {"to": CUSTOMER, "number": preview["number"], "digest": whole["digest"],
                              "amount_due_usd": preview["amount_due_usd"]}  # fmt: skip


def test_a_second_sending_asks_first(both: tuple[Stand, SmtpServer]) -> None:
    stand, server = both
    first = sent(stand).body["sent"]
    again = sent(stand)
    assert (again.status, again.body["error"]["code"]) == (409, "already_sent")
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    assert f"was sent to {CUSTOMER} on {day} by admin" in again.body["error"]["message"]
    assert (len(server.received), first["is_certain"]) == (1, True)
    long = f"{'c' * 60}@{'f' * 60}.{'o' * 60}.example"  # longer than a name may be
    other = sent(stand, again=True, to=long)
    assert (other.status, other.body["sent"]["to"]) == (200, long), other
    assert server.received[1].recipients[0] == line(stand)["sent_to"] == long


def test_of_operators_at_once_one_sends(both: tuple[Stand, SmtpServer]) -> None:
    stand, server = both
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: sent(stand).status, range(4)))
    assert (sorted(answers), len(server.received)) == ([200, 409, 409, 409], 1)


def test_of_operators_with_different_clocks_one_sends(both: tuple[Stand, SmtpServer]) -> None:
    """Before: the one with the earlier time did not see the other, and both sent it."""
    stand, server = both
    clock = iter((2.0, 1.0))
    audit_log, now = AuditLog(stand.engine, clock=lambda: next(clock)), datetime.now(UTC).timestamp()
    letterhead = stand.deployed.settings.statement
    statement = read_statement(stand.engine, StatementOwner("org_default", "organization", "default"),
                               month_from(MONTH), None, letterhead)  # fmt: skip
    mail, by = statement_mail.statement_mail(statement, letterhead, None), Actor("ann", "cli", None)
    operation = partial(audit_log.operation, by, statement_mail.SEND, mail.number, mail.details)
    send = partial(statement_mail.send_statement, mail, audit_log, again=False, now=now)
    with operation() as first, operation() as second:
        send(first)
        with pytest.raises(statement_mail.AlreadySentError):
            send(second)
    assert len(server.received) == 1


def test_a_failure_names_the_server_and_its_answer(
    both: tuple[Stand, SmtpServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And never the password. The next sending does not ask: nothing was sent."""
    stand, server = both
    server.answers["RCPT"] = f"550 5.1.1 {MAIL_PASSWORD}: no such user"
    refused = sent(stand)
    assert (refused.status, refused.body["error"]["code"]) == (502, "mail_failed")
    words = f"localhost:{server.port}: rejected the recipient {CUSTOMER}: 550 5.1.1 …: no such user"
    assert refused.body["error"]["message"] == f"{words}."
    act = stand.get("/v1/audit?action=statement.send")["data"][0]
    assert (act["result"], act["message"]) == ("refused", words)
    server.answers = {".": "hang"}
    monkeypatch.setattr(statement_mail, "SEND_S_MAX", 0.5)
    late = sent(stand).body["error"]["message"]
    assert late == f"localhost:{server.port}: no answer to the message within 0.5 s; it may have been delivered."
    assert (line(stand)["state"], server.received) == ("final", [])
    server.answers = {}
    monkeypatch.setattr(statement_mail, "SEND_S_MAX", 10.0)
    assert sent(stand).status == 200


def test_a_mail_server_that_hangs_holds_up_no_other_operator(both: tuple[Stand, SmtpServer]) -> None:
    """Before: two sendings took both threads of operators for 30 s, in which no key could be blocked."""
    stand, server = both
    server.answers["EHLO"] = "hang"
    with ThreadPoolExecutor(3) as pool:
        sendings = [pool.submit(sent, stand, again=True) for _ in range(3)]
        wait_until(lambda: len(server.lines) >= 2)
        stand.post("/key/block", {"key": stand.get("/key/list")["keys"][0]["token"]})
        assert not any(one.done() for one in sendings)
        server.close()
        assert {one.result().body["error"]["code"] for one in sendings} == {"mail_failed"}


def test_without_the_extra_the_page_is_attached(
    both: tuple[Stand, SmtpServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand, server = both
    monkeypatch.setattr(statement_mail, "has_pdf", lambda: False)
    name = sent(stand).body["attachment"]
    attached = next(server.received[0].message.iter_attachments())
    assert (attached.get_content_type(), attached.get_filename()) == ("text/html", name)
    assert "Acme Ltd" in attached.get_content()


def test_what_is_wrong_is_named(both: tuple[Stand, SmtpServer], stand: Stand) -> None:
    """The second console has no mail server."""
    ready, server = both
    month = f"{datetime.now(UTC):%Y-%m}"
    for body, status, param in (
        ({"month": month}, 400, "month"), ({"to": "nobody"}, 400, "to"), ({"to": "a@b\r\nBcc: c@d"}, 400, "to"),
        ({"scope_id": "org_nobody"}, 404, "scope_id"), ({"month": "x"}, 400, "month"),
    ):  # fmt: skip
        refused = sent(ready, **body)
        assert (refused.status, refused.body["error"]["param"]) == (status, param), refused
    for key in (READER, WORKER):
        assert ready("POST", "/v1/statements/send", NAMED, key=key).body["error"]["code"] == "role_too_low"
    assert (server.lines, ready.get("/v1/audit?action=statement.send")["data"]) == ([], [])
    stand.key("key-1")
    stand.post("/v1/periods/close", {"month": MONTH})
    assert "see `statement.mail` in the settings" in sent(stand).body["error"]["message"]


def test_a_project_has_no_address_by_its_name(both: tuple[Stand, SmtpServer]) -> None:
    """Before: it was sent to the customer whose project, or organization, has the same name."""
    stand, server = both
    project = {"scope_id": "proj_default", "month": MONTH}
    assert stand.get(f"/v1/statements/mail?scope_id=proj_default&month={MONTH}")["to"] is None
    refused = stand("POST", "/v1/statements/send", project).body["error"]["message"]
    assert "set `statement.customers.proj_default.email`" in refused
    assert server.lines == []


def test_a_customer_without_an_address_needs_one(tmp_path: Path) -> None:
    port = free_port()
    with mailing(tmp_path, email="", port=port) as (stand, _):
        assert stand.get(f"/v1/statements/mail?scope_id=org_default&month={MONTH}")["to"] is None
        refused = sent(stand)
        assert (refused.status, refused.body["error"]["param"]) == (400, "to")
        assert "set `statement.customers.default.email`" in refused.body["error"]["message"]
        down = sent(stand, to=CUSTOMER)
        assert down.body["error"]["message"] == f"localhost:{port}: Connection refused at the connection."
