"""A mail server on loopback: it keeps what it gets, and rejects or hangs where a test says so."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from typing import Any


@dataclass(frozen=True, slots=True)
class Received:
    """A message, and how it came."""

    sender: str
    recipients: list[str]
    content: bytes
    is_encrypted: bool
    user: str | None

    @property
    def message(self) -> EmailMessage:
        return message_from_bytes(self.content, policy=default)


@dataclass(slots=True)
class SmtpServer:
    """Listens until it is closed."""

    tls: ssl.SSLContext | None = None
    """the connection is encrypted from the beginning"""
    starttls: ssl.SSLContext | None = None
    """STARTTLS is offered"""
    user: tuple[str, str] | None = None
    """who must sign in, with which password"""
    answers: dict[str, str] = field(default_factory=dict)
    """a command's first word in capitals (`CONNECT` for the greeting, `.` for the end of the message), or a whole line
    → the answer in place of the usual one. `hang`: none; `drip`: a byte at a time, without an end; `close`: the end of
    the connection"""
    received: list[Received] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    """the commands, as they came"""
    _listener: Any = None
    _free: Any = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        self._free.set()
        with suppress(OSError):  # it is closed already
            # Linux wakes a thread that accepts only by this.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError, _Closed):
            conversation = _Conversation(self, connection)
            try:
                conversation.run()
            finally:
                conversation.close()
        connection.close()


class _Closed(Exception):
    pass


class _Conversation:
    def __init__(self, server: SmtpServer, connection: socket.socket) -> None:
        self._server = server
        self._encrypted = server.tls is not None
        self._connection = connection if server.tls is None else server.tls.wrap_socket(connection, server_side=True)
        self._file = self._connection.makefile("rb")
        self._user: str | None = None
        self._sender, self._recipients = "", list[str]()

    def run(self) -> None:
        self._answer("CONNECT", "220 mail.example ESMTP")
        while line := self._file.readline():
            text = line.decode("latin-1").strip()
            self._server.lines.append(text)
            verb, _, rest = text.partition(" ")
            getattr(self, f"_on_{verb.lower()}", self._on_other)(text, rest)

    def close(self) -> None:
        self._file.close()
        self._connection.close()

    def _answer(self, on: str, usual: str) -> bool:
        """Answer a command; true: as usual."""
        answers: Mapping[str, str] = {command.upper(): answer for command, answer in self._server.answers.items()}
        line = on.upper()  # newer versions of smtplib send commands in capitals
        told = answers.get(line) or answers.get(line.partition(" ")[0])
        if told == "close":
            raise _Closed
        if told in ("hang", "drip"):
            while not self._server._free.wait(0.05 if told == "drip" else None):
                self._connection.sendall(b"2")
            raise _Closed
        self._connection.sendall(f"{told or usual}\r\n".encode())
        return told is None

    def _on_ehlo(self, text: str, _rest: str) -> None:
        server = self._server
        offers = ["mail.example"]
        offers += ["STARTTLS"] if server.starttls is not None and not self._encrypted else []
        offers += ["AUTH PLAIN"] if server.user is not None else []
        lines = [f"250{' ' if number == len(offers) else '-'}{one}" for number, one in enumerate(offers, 1)]
        self._answer(text, "\r\n".join(lines))

    def _on_starttls(self, text: str, _rest: str) -> None:
        if self._answer(text, "220 go ahead"):
            assert self._server.starttls is not None
            self._file.close()
            self._connection = self._server.starttls.wrap_socket(self._connection, server_side=True)
            self._file, self._encrypted = self._connection.makefile("rb"), True

    def _on_auth(self, text: str, rest: str) -> None:
        _, user, password = base64.b64decode(rest.split(" ")[1]).decode().split("\0")
        if (user, password) != self._server.user:
            # As some servers do, with what they got.
            self._answer(text, f"535 5.7.8 bad sign-in: {user} {password} {rest}")
        elif self._answer(text, "235 welcome"):
            self._user = user

    def _on_mail(self, text: str, rest: str) -> None:
        if self._server.user is not None and self._user is None:
            self._answer(text, "530 sign in first")
        elif self._answer(text, "250 ok"):
            self._sender, self._recipients = rest.partition("<")[2].partition(">")[0], []

    def _on_rcpt(self, text: str, rest: str) -> None:
        if self._answer(text, "250 ok"):
            self._recipients.append(rest.partition("<")[2].partition(">")[0])

    def _on_data(self, text: str, _rest: str) -> None:
        if not self._answer(text, "354 go on"):
            return
        lines = []
        while (line := self._file.readline()) not in (b".\r\n", b""):
            lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
        if self._answer(".", "250 accepted"):
            content = b"".join(lines)
            self._server.received.append(Received(self._sender, self._recipients, content, self._encrypted, self._user))

    def _on_quit(self, text: str, _rest: str) -> None:
        self._answer(text, "221 bye")
        raise _Closed

    def _on_other(self, text: str, _rest: str) -> None:
        self._answer(text, "250 ok" if text.startswith(("RSET", "NOOP", "HELO")) else "500 unknown command")
