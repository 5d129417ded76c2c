"""Mends a JSON text that no reader takes, so that the rest of it can be read.

Invariants: a literal or number that is not JSON becomes null, and a value that is nested too deeply becomes an empty
list. Nothing else changes, and strings never do. Time is linear.
"""

from __future__ import annotations

import re

# A longer text is not mended: it would take longer than one turn of the loop may. 3,000 nested lists have 6 kB.
BYTES_MAX = 8 << 10
# Far more levels than any answer has; readers take some 1,000.
DEPTH_MAX = 64
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*"|[\[\]{}]|[^\s,:\[\]{}"]++|[\s,:]++|".*+', re.DOTALL)
_LITERAL = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null|NaN|-?Infinity")


def mended(text: bytes) -> bytes | None:
    """`text`, mended; None if there is nothing to mend, or the text is too long. Brackets that do not match, and a
    string without an end, stay as they are."""
    if len(text) > BYTES_MAX:
        return None
    kept, depth, changed = list[bytes](), 0, False
    for token in _TOKEN.findall(text):
        opens, closes = token in (b"[", b"{"), token in (b"]", b"}")
        depth += opens
        if depth > DEPTH_MAX:
            changed = True
            if opens and depth == DEPTH_MAX + 1:
                kept.append(b"[]")
        elif opens or closes or token[:1] in b'" \t\r\n,:' or _LITERAL.fullmatch(token):
            kept.append(token)
        else:
            changed = True
            kept.append(b"null")
        depth -= closes
    return b"".join(kept) if changed else None
