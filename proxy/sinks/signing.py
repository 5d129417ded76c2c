"""Signs requests to an external server.

Headers of a signed request:

    X-Tokenweir-Id         id of the event; the same for every attempt
    X-Tokenweir-Timestamp  Unix seconds of this attempt
    X-Tokenweir-Signature  v1=hex(HMAC-SHA256(secret, timestamp + "." + body))
"""

from __future__ import annotations

import hashlib
import hmac

from proxy.foundation.secret import Secret


def signed(secret: Secret, event_id: str, body: bytes, unix_s: float) -> dict[str, str]:
    """The headers of a signed request."""
    timestamp = str(int(unix_s))
    return {
        "X-Tokenweir-Id": event_id,
        "X-Tokenweir-Timestamp": timestamp,
        "X-Tokenweir-Signature": signature(secret, timestamp, body),
    }


def signature(secret: Secret, timestamp: str, body: bytes) -> str:
    """The value of X-Tokenweir-Signature."""
    mac = hmac.new(secret.reveal().encode(), timestamp.encode() + b"." + body, hashlib.sha256)
    return f"v1={mac.hexdigest()}"
