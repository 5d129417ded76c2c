"""The handshake of a WebSocket: checks a client's head, and makes the heads in both directions.

Invariants: a key that a browser sends as a subprotocol is read and never sent to the provider; nor are subprotocols
that name the account that pays. No extension is negotiated.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass

from aiohttp import HttpVersion11, web
from aiohttp.http import WS_KEY
from multidict import istr

from proxy.http.errors import ApiError, bad_request
from proxy.http.framing import Head
from proxy.http.headers import is_token

PROTOCOL = istr("Sec-WebSocket-Protocol")
# OpenAI's subprotocols for web pages, which cannot set headers of a WebSocket.
# https://developers.openai.com/api/docs/guides/realtime-websocket
KEY_PROTOCOL = "openai-insecure-api-key."
_OF_ACCOUNTS = (KEY_PROTOCOL, "openai-organization.", "openai-project.")
# More than any client offers.
PROTOCOLS_MAX = 16

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,512}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Handshake:
    """The handshake of a client."""

    accept: str
    """the value of Sec-WebSocket-Accept"""
    protocols: tuple[str, ...]
    """the offered subprotocols, without those of accounts"""


def asks_for_websocket(request: web.BaseRequest) -> bool:
    """True if the client requests a WebSocket."""
    return is_token(request.headers.get("Upgrade", ""), "websocket")


def key_offered(request: web.BaseRequest) -> str | None:
    """The API key among the subprotocols; None if there is none."""
    for name in _offered(request):
        if name.startswith(KEY_PROTOCOL):
            return name.removeprefix(KEY_PROTOCOL)
    return None


def handshake(request: web.BaseRequest) -> Handshake:
    """Check the head. Raises ApiError if it cannot begin a WebSocket."""
    headers = request.headers
    options = headers.get("Connection", "").split(",")
    upgrades = any(is_token(option, "upgrade") for option in options)
    if request.method != "GET" or request.version < HttpVersion11 or not upgrades:
        raise bad_request("A WebSocket begins with GET, in HTTP/1.1, and `Connection: Upgrade`.", param="Connection")
    if headers.get("Sec-WebSocket-Version") != "13":
        message, name = "Only version 13 of WebSocket is supported.", "Sec-WebSocket-Version"
        raise ApiError(426, message, param=name, headers=((name, "13"),))
    key = headers.get("Sec-WebSocket-Key", "")
    try:
        is_key = len(b64decode(key, validate=True)) == 16
    except (Base64Error, ValueError):
        is_key = False
    if not is_key:
        raise bad_request("Sec-WebSocket-Key must be 16 bytes in base64.", param="Sec-WebSocket-Key")
    offered = _offered(request)
    if len(offered) > PROTOCOLS_MAX or not all(map(_TOKEN.fullmatch, offered)):
        raise bad_request("Sec-WebSocket-Protocol is not a short list of names.", param=str(PROTOCOL))
    return Handshake(_accept(key), tuple(name for name in offered if not name.startswith(_OF_ACCOUNTS)))


def _offered(request: web.BaseRequest) -> list[str]:
    given = ",".join(request.headers.getall(PROTOCOL, ()))
    return [name.strip(" \t") for name in given.split(",")] if given else []


def _accept(key: str) -> str:
    return b64encode(hashlib.sha1(key.encode() + WS_KEY, usedforsecurity=False).digest()).decode()


def new_key() -> str:
    """A new key for the handshake with a provider."""
    return b64encode(secrets.token_bytes(16)).decode()


def lines_up(key: str, protocols: tuple[str, ...]) -> str:
    """The lines of the head to a provider, each with its CRLF."""
    lines = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}"]
    if protocols:
        lines.append(f"{PROTOCOL}: {', '.join(protocols)}")
    return "".join(f"{line}\r\n" for line in lines)


def chosen(head: Head, key: str, protocols: tuple[str, ...]) -> str | None:
    """The subprotocol that the provider has chosen, or None. Raises ValueError for a head that accepts no WebSocket, or
    another subprotocol than those offered."""
    if not is_token(head.header("upgrade"), "websocket") or head.header("sec-websocket-accept") != _accept(key):
        raise ValueError("not accepted")
    protocol = head.header("sec-websocket-protocol") or None
    if head.header("sec-websocket-extensions") or (protocol is not None and protocol not in protocols):
        raise ValueError("accepted what was not offered")
    return protocol
