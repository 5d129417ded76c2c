"""Makes exchange ids: UUIDv7, so that they sort by time.

Invariant: an id exists before its exchange begins and never comes from a client.
"""

from __future__ import annotations

import random
import time


def exchange_id() -> str:
    """A new UUIDv7 (RFC 9562): 48 bits of Unix milliseconds, 74 random bits."""
    stamp = time.time_ns() // 1_000_000
    noise = random.getrandbits(80)
    number = (stamp & (1 << 48) - 1) << 80 | noise
    number = number & ~(0xF << 76) | 0x7 << 76  # version 7
    number = number & ~(0x3 << 62) | 0x2 << 62  # RFC 9562 variant
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
