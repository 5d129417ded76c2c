"""`tokenweir statement --send`: a real mail server gets the statement of a closed month."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import CONFIG, Commands, Terminal
from tests.ledger.priced_entries import a_real_entry
from tests.support.smtp_server import SmtpServer

pytestmark = pytest.mark.io

MONTH, BEGAN = "2026-10", 1_792_000_000.0
SEND = ("statement", "--account", "org_default", "--month", MONTH, "--send")


@pytest.fixture
def server() -> Iterator[SmtpServer]:
    made = SmtpServer()
    yield made
    made.close()


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], server: SmtpServer) -> Commands:
    """October is used and closed."""
    mail = {"host": "127.0.0.1", "port": server.port, "tls": "none", "from": "billing@weir.example"}
    statement = {"seller": "Weir", "customers": {"default": {"email": "acme@customer.example"}}, "mail": mail}
    made = Commands(tmp_path, capsys, {**CONFIG, "statement": statement})
    key = made("keys", "create", "--alias", "anna", "--project", "default")[0]["key_id"]
    made.settle(a_real_entry(1, key=key, started_at=BEGAN))
    made("periods", "close", MONTH)
    return made


def test_it_is_sent_once_and_again_on_request(
    run: Commands, server: SmtpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(*SEND)
    assert run.err.endswith(".pdf is sent to acme@customer.example\n")
    assert server.received[0].recipients == ["acme@customer.example"]
    monkeypatch.setattr("sys.stdin", Terminal("no\n"))
    assert run.refused(*SEND).endswith("nothing was changed")
    assert "was sent to acme@customer.example on " in run.err
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert run.refused(*SEND).endswith("nothing was changed; --yes answers the question"), "a cron job that ran twice"
    assert len(server.received) == 1
    run(*SEND, "--to", "cfo@customer.example", "--yes")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    run(*SEND)
    assert [one.recipients[0].partition("@")[0] for one in server.received] == ["acme", "cfo", "acme"]
    acts = [one for one in run("audit", "--json") if one["action"] == "statement.send"]
    assert [(one["via"], one["result"], one["details"]["to"]) for one in acts] == [
        ("cli", "done", f"{name}@customer.example") for name in ("acme", "cfo", "acme")
    ]


def test_what_does_not_go_together_is_refused(run: Commands, server: SmtpServer) -> None:
    for options, words in (
        (("--format", "pdf"), "--send: cannot be combined with --format"),
        (("--output", "x.html"), "--send: cannot be combined with --output"),
        (("--to", "nobody"), "must be an e-mail address"),
    ):
        assert words in run.refused(*SEND, *options)
    assert "--to: needs --send" in run.refused(*SEND[:-1], "--to", "a@b.example")
    assert "is not closed" in run.refused("statement", "--account", "org_default", "--month", "2026-11", "--send")
    server.answers["MAIL"] = "451 come later"
    assert run.refused(*SEND) == (
        f"tokenweir: 127.0.0.1:{server.port}: rejected the sender billing@weir.example: 451 come later"
    )
    assert server.received == []
