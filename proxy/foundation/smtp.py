"""Sends one message to a mail server (SMTP).

Invariants:
- The time has a limit, whatever the server does; beyond it, only the look-up of its name and attempts to connect to
  further addresses of the name.
- A message is sent to all recipients or, if the server rejects one of them, to none.
- No error contains the password, even if the server repeats it.
"""

from __future__ import annotations

import base64
import smtplib
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Thread

from proxy.foundation.secret import Secret

ANSWER_CHARS_MAX = 200
# How often a connection is broken again, if it was made only when the time was over.
BREAK_S = 0.05


class MailError(ValueError):
    """The message was not sent, or perhaps not; the text names the server and its answer."""


@dataclass(frozen=True, slots=True)
class MailServer:
    """A mail server, and how to reach it."""

    host: str
    port: int
    is_tls: bool
    """encrypted from the beginning"""
    starttls: bool
    """encrypted by STARTTLS, before anything else"""
    tls: ssl.SSLContext
    username: str
    """empty: no sign-in"""
    password: Secret | None
    ehlo_name: str
    """the name by which the client introduces itself"""

    @property
    def name(self) -> str:
        """`host:port`"""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def send(server: MailServer, sender: str, recipients: Sequence[str], message: bytes, *, limit_s: float) -> None:
    """Send `message` (headers and body, lines end with CRLF). Blocks for `limit_s` at most. Raises MailError."""
    is_over, step = Event(), _Step(limit_s)
    try:
        client = _Client(server, limit_s)
        with _limited(client, limit_s, is_over):
            _send(client, server, (sender, recipients, message), step)
    except (OSError, ValueError, smtplib.SMTPException) as failure:
        raise MailError(f"{server.name}: {_words(failure, server, step, is_over)}") from None


class _Step:
    """What is being done, for errors."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.doing = "the connection"
        self.offered = ""
        self.doubt = ""
        """set if the server may have accepted the message"""


class _Client(smtplib.SMTP):
    """Connects to the server with `connect`. `handle`: a second handle of its connection, whatever wraps the first."""

    handle: socket.socket | None = None

    def __init__(self, server: MailServer, limit_s: float) -> None:
        super().__init__(local_hostname=server.ehlo_name, timeout=limit_s)
        self._host = server.host  # the name in the certificate; the base class sets it only if it connects at once
        self._tls = server.tls if server.is_tls else None

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        """As SMTP_SSL has it."""
        connected = socket.create_connection((host, port), timeout)
        connected.settimeout(2 * timeout)  # `_limited` ends it before
        self.handle = connected.dup()
        return connected if self._tls is None else self._tls.wrap_socket(connected, server_hostname=host)


@contextmanager
def _limited(client: _Client, limit_s: float, is_over: Event) -> Iterator[None]:
    """Breaks the connection when the time is over: a server that sends a byte at a time outlasts the time limit of a
    socket."""
    is_done = Event()

    def watch() -> None:
        if is_done.wait(limit_s):
            return
        is_over.set()
        while not is_done.wait(BREAK_S):
            if client.handle is not None:
                with suppress(OSError):
                    client.handle.shutdown(socket.SHUT_RDWR)

    Thread(target=watch, name="mail", daemon=True).start()
    try:
        yield
    finally:
        is_done.set()
        client.close()
        if client.handle is not None:
            client.handle.close()


def _send(client: _Client, server: MailServer, what: tuple[str, Sequence[str], bytes], step: _Step) -> None:
    sender, recipients, message = what
    _accepted(client.connect(server.host, server.port), 220)
    if server.starttls:
        step.doing, step.offered = "STARTTLS", "STARTTLS"
        client.starttls(context=server.tls)
    step.doing = "the greeting"
    client.ehlo_or_helo_if_needed()
    if server.username:
        assert server.password is not None, "checked with the settings"
        step.doing, step.offered = f"the sign-in as {server.username}", "a sign-in (AUTH)"
        client.login(server.username, server.password.reveal())
    step.doing = f"the sender {sender}"
    _accepted(client.mail(sender), 250)
    for recipient in recipients:
        step.doing = f"the recipient {recipient}"
        _accepted(client.rcpt(recipient), 250, 251)
    step.doing, step.doubt = "the message", "; it may have been delivered"
    _accepted(client.data(message), 250)
    step.doubt = ""
    with suppress(OSError, smtplib.SMTPException):  # the message is accepted
        client.quit()


def _accepted(answer: tuple[int, bytes], *codes: int) -> None:
    """Raises SMTPResponseException for an answer with another code."""
    if answer[0] not in codes:
        raise smtplib.SMTPResponseException(*answer)


def _shown(code: int, answer: bytes | str, server: MailServer) -> str:
    """The answer of a server as one line, without the password in the forms in which it was sent."""
    text = answer if isinstance(answer, str) else answer.decode("utf-8", "replace")
    if server.password is not None:
        secret = server.password.reveal()
        plain = base64.b64encode(f"\0{server.username}\0{secret}".encode()).decode()
        for form in (plain, base64.b64encode(secret.encode()).decode(), secret):
            text = text.replace(form, "…")
    printable = "".join(char if char.isprintable() else " " for char in text)
    return f"{code} {printable[:ANSWER_CHARS_MAX]}".strip()


def _words(failure: Exception, server: MailServer, step: _Step, is_over: Event) -> str:
    if is_over.is_set() or isinstance(failure, TimeoutError):
        return f"no answer to {step.doing} within {step.limit_s:g} s{step.doubt}"
    if isinstance(failure, smtplib.SMTPNotSupportedError):
        return f"does not offer {step.offered}"
    if isinstance(failure, smtplib.SMTPResponseException):
        return f"rejected {step.doing}: {_shown(failure.smtp_code, failure.smtp_error, server)}"
    if isinstance(failure, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {failure.verify_message}"
    return f"{_reason(failure)} at {step.doing}{step.doubt}"


def _reason(failure: Exception) -> str:
    if isinstance(failure, smtplib.SMTPServerDisconnected):
        return "closed the connection"
    if isinstance(failure, ssl.SSLError):
        return f"TLS failed ({failure.reason or 'no reason'})"
    if isinstance(failure, OSError) and failure.strerror:
        return failure.strerror
    return type(failure).__name__
