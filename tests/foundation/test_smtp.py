"""One message to a mail server: with and without TLS, rejected at every step, and to servers that hang."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.foundation.secret import Secret
from proxy.foundation.smtp import MailError, MailServer, send
from tests.support.certificates import Authority
from tests.support.net import free_port
from tests.support.smtp_server import SmtpServer

pytestmark = pytest.mark.io

PASSWORD = "the-pass-word-of-billing"
USER = ("billing", PASSWORD)
MESSAGE = b"Subject: a bill\r\n\r\nAmount due: $1.00\r\n.a line that begins with a dot\r\n"
SENDER, RECIPIENTS = "billing@weir.example", ("acme@customer.example", "copy@weir.example")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def context(authority: Authority) -> ssl.SSLContext:
    return authority.server_context(authority.issue("server"))


@pytest.fixture
def server() -> Iterator[Any]:
    """Servers that are closed at the end."""
    made: list[SmtpServer] = []

    def begin(**how: Any) -> SmtpServer:
        made.append(SmtpServer(**how))
        return made[-1]

    yield begin
    for one in made:
        one.close()


def sent(port: int, ca_file: Path | None = None, *, limit_s: float = 10.0, **how: Any) -> None:
    defaults: dict[str, Any] = {
        "host": "127.0.0.1", "port": port, "is_tls": False, "starttls": False,
        "tls": ssl.create_default_context(cafile=ca_file), "username": "", "password": None,
        "ehlo_name": "weir.example",
    }  # fmt: skip
    send(MailServer(**{**defaults, **how}), SENDER, RECIPIENTS, MESSAGE, limit_s=limit_s)


SIGN_IN = {"username": "billing", "password": Secret(PASSWORD)}


@pytest.mark.parametrize("way", ["starttls", "is_tls", "none"])
def test_it_arrives_as_it_was_sent(server: Any, authority: Authority, context: ssl.SSLContext, way: str) -> None:
    how = {"starttls": {"starttls": context}, "is_tls": {"tls": context}, "none": {}}[way]
    at = server(user=USER, **how)
    sent(at.port, authority.file, **SIGN_IN, **({} if way == "none" else {way: True}))
    (one,) = at.received
    assert (one.sender, one.recipients, one.content) == (SENDER, list(RECIPIENTS), MESSAGE)
    assert (one.is_encrypted, one.user) == (way != "none", "billing")
    if way == "starttls":
        assert at.lines[:2] == ["ehlo weir.example", "STARTTLS"], "nothing is sent before"


@pytest.mark.parametrize(
    ("on", "answer", "words"),
    [
        ("CONNECT", "554 no service for 127.0.0.1", "rejected the connection: 554 no service for 127.0.0.1"),
        ("MAIL", "550 5.1.8 not from you", "rejected the sender billing@weir.example: 550 5.1.8 not from you"),
        ("rcpt TO:<copy@weir.example>", "550 unknown", "rejected the recipient copy@weir.example: 550 unknown"),
        ("DATA", "451 later", "rejected the message: 451 later"),
        (".", "552 too large", "rejected the message: 552 too large"),
        ("RCPT", "close", "closed the connection at the recipient acme@customer.example"),
        (".", "close", "closed the connection at the message; it may have been delivered"),
    ],
)
def test_a_rejection_is_told_with_the_servers_answer(server: Any, on: str, answer: str, words: str) -> None:
    at = server(answers={on: answer})
    with pytest.raises(MailError) as refused:
        sent(at.port)
    assert str(refused.value) == f"127.0.0.1:{at.port}: {words}"
    assert at.received == []


def test_the_password_is_in_no_error(server: Any, authority: Authority, context: ssl.SSLContext) -> None:
    at = server(user=("billing", "another"), starttls=context)
    with pytest.raises(MailError) as refused:
        sent(at.port, authority.file, starttls=True, **SIGN_IN)
    assert f"127.0.0.1:{at.port}: rejected the sign-in as billing: 535 5.7.8 bad sign-in: billing …" in str(
        refused.value
    )
    at.answers["AUTH"] = f"535 {PASSWORD}"
    with pytest.raises(MailError) as again:
        sent(at.port, authority.file, starttls=True, **SIGN_IN)
    for text in (str(refused.value), str(again.value), repr(refused.getrepr())):
        assert "pass-word" not in text
        assert "AGJpbGxpbmcA" not in text, "the sign-in in base64"


@pytest.mark.parametrize(
    ("how", "on"),
    [
        *(("hang", on) for on in ("CONNECT", "EHLO", "STARTTLS", "AUTH", "MAIL", ".")),
        ("drip", "CONNECT"),
        ("drip", "."),
    ],
)
def test_a_server_that_hangs_ends_with_the_time(
    server: Any, authority: Authority, context: ssl.SSLContext, how: str, on: str
) -> None:
    at = server(user=USER, starttls=context, answers={on: how})
    began = time.monotonic()
    with pytest.raises(MailError) as refused:
        sent(at.port, authority.file, starttls=True, limit_s=0.25, **SIGN_IN)
    assert time.monotonic() - began < 5
    assert "within 0.25 s" in str(refused.value), refused.value
    assert on == "." or "it may have been delivered" not in str(refused.value)


def test_a_handshake_that_hangs_ends_with_the_time(server: Any, authority: Authority) -> None:
    at = server(answers={"CONNECT": "hang"})
    with pytest.raises(MailError, match=r"no answer to the connection within 0\.3 s"):
        sent(at.port, authority.file, is_tls=True, limit_s=0.3)


def test_what_cannot_be_trusted_gets_nothing(server: Any, authority: Authority, context: ssl.SSLContext) -> None:
    plain = server(user=USER)
    with pytest.raises(MailError, match="does not offer STARTTLS"):
        sent(plain.port, authority.file, starttls=True, **SIGN_IN)
    assert plain.lines == ["ehlo weir.example"]
    unknown = server(starttls=context)
    with pytest.raises(MailError, match="its certificate is not accepted: unable to get local issuer certificate"):
        sent(unknown.port, starttls=True, **SIGN_IN)
    nobody = server()
    with pytest.raises(MailError, match=r"does not offer a sign-in \(AUTH\)"):
        sent(nobody.port, **SIGN_IN)
    port = free_port()
    with pytest.raises(MailError, match=rf"127\.0\.0\.1:{port}: Connection refused at the connection"):
        sent(port)
