"""The settings of the mail server that sends statements.

Invariants: a password is sent over TLS only, or to this machine. No setting turns off the verification of certificates.
"""

from __future__ import annotations

import re
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path

from proxy.foundation.secret import Secret
from proxy.settings.fields import FieldPath, FieldType, read_section, setting, settings_section
from proxy.settings.kinds import choice, path_of, secret, text, whole

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?|[0-9A-Fa-f:]{2,39}", re.ASCII)
_USER = re.compile(r"[\x21-\x7e]{1,256}")
_ADDRESS = re.compile(
    r"(?=.{3,254}\Z)[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*"
    r"@[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*",
    re.ASCII,
)


def is_address(value: str) -> bool:
    """Whether this is one e-mail address, without a name."""
    return _ADDRESS.fullmatch(value) is not None


def email_address() -> FieldType:
    """One e-mail address, without a name."""
    return text(_ADDRESS, "an e-mail address, such as billing@example.com")


class MailTls(StrEnum):
    """How the connection to a mail server is encrypted."""

    STARTTLS = "starttls"
    TLS = "tls"
    NONE = "none"


_PORTS = {MailTls.STARTTLS: 587, MailTls.TLS: 465, MailTls.NONE: 25}


@settings_section
class MailSettings:
    """The mail server (SMTP), and the addresses of the sender."""

    host: str = setting(text(_HOST, "a host name or an address"), "the mail server")
    port: int = setting(whole(1, 65_535), "its port", default=0, shown="587; 465 for `tls`; 25 for `none`")
    tls: MailTls = setting(
        choice(MailTls),
        "`starttls`: the connection is encrypted before an address or a password is sent, or nothing is sent; `tls`: "
        "from the beginning; `none`: never, and without a password unless the server is this machine",
        default=MailTls.STARTTLS,
    )
    ca_file: Path | None = setting(
        path_of("file"), "the CA certificates to trust instead of the system's", default=None, shown="the system's"
    )
    username: str = setting(text(_USER, "visible ASCII characters"), "the user at the server", default="", shown="none")
    password: Secret | None = setting(secret(), "the user's password", default=None, shown="none")
    sender: str = setting(email_address(), "the sender's address; its name is `statement.seller`", name="from")
    reply_to: str = setting(email_address(), "where answers go", default="", shown="`from`")
    bcc: str = setting(email_address(), "an address that gets a copy of each statement", default="", shown="none")

    @property
    def server_port(self) -> int:
        """The port of the server."""
        return self.port or _PORTS[self.tls]


def mail() -> FieldType:
    """The mail server, with a user and a password or with neither."""

    def read(raw: object, at: FieldPath) -> MailSettings:
        found: MailSettings = read_section(MailSettings, raw, at)
        if bool(found.username) != (found.password is not None):
            missing = "password" if found.username else "username"
            raise at.under(missing).wrong("is missing: a user and a password go together")
        if found.username and found.tls is MailTls.NONE and not _is_loopback(found.host):
            raise at.under("tls").wrong("a password is sent over TLS only: write starttls or tls")
        return found

    return FieldType("fields", read, MailSettings)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
