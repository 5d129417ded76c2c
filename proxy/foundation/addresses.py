"""Addresses: those that a listener's `host` means (one, several separated by commas, or `*`), and safe URLs."""

from __future__ import annotations

import socket
from contextlib import suppress
from functools import cache
from ipaddress import ip_address
from urllib.parse import urlsplit

EVERY = "*"


def hosts_of(host: str) -> list[str]:
    """The hosts to listen on; of `*`, all addresses of both families, where this machine has IPv6."""
    if host == EVERY:
        return ["0.0.0.0", "::"] if _has_ipv6() else ["0.0.0.0"]  # noqa: S104  it is what the operator wrote
    return [one.strip() for one in host.split(",")]


def shown_host(host: str) -> str:
    """The host of a URL that reaches the listener from this machine, or from where its first address is."""
    first = "127.0.0.1" if host == EVERY else hosts_of(host)[0]
    return f"[{first}]" if ":" in first else first


def is_tls_or_loopback(url: str) -> bool:
    """Whether requests to this URL are encrypted (https://) or stay on this machine. Raises
    ValueError if it cannot be parsed."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https" or (parts.scheme == "http" and host == "localhost"):
        return bool(host)
    try:
        return parts.scheme == "http" and ip_address(host).is_loopback
    except ValueError:
        return False


@cache
def _has_ipv6() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET6) as tried:
        tried.bind(("::1", 0))
        return True
    return False
