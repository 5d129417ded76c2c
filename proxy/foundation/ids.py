"""Makes ids. Those of exchanges are UUIDv7, so that they sort by time.

Invariant: the id of an exchange exists before its exchange begins and never comes from a client.
"""

from __future__ import annotations

import hashlib
import random
import secrets
import time


def new_id(kind: str) -> str:
    """A random id of a key or an account. `kind`: `key`, `proj`, `org`."""
    return f"{kind}_{secrets.token_hex(10)}"


def exchange_id(unix_ms: int | None = None) -> str:
    """A new UUIDv7 (RFC 9562): 48 bits of Unix milliseconds (None: now), 74 random bits."""
    stamp = time.time_ns() // 1_000_000 if unix_ms is None else unix_ms
    noise = random.getrandbits(80)
    number = (stamp & (1 << 48) - 1) << 80 | noise
    number = number & ~(0xF << 76) | 0x7 << 76  # version 7
    number = number & ~(0x3 << 62) | 0x2 << 62  # RFC 9562 variant
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def derived_id(parent: str, name: str) -> str:
    """The id of a part of an exchange: a UUIDv7 of its millisecond. Equal names give equal ids."""
    digest = hashlib.sha256(f"{parent}/{name}".encode()).hexdigest()
    variant = "89ab"[int(digest[3], 16) & 3]
    return f"{parent[:13]}-7{digest[:3]}-{variant}{digest[4:7]}-{digest[7:19]}"
