"""Bodies framed and read back."""

from __future__ import annotations

from string import hexdigits


def framed(payload: bytes, extension: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n" % (len(payload), extension, payload)


def unframed(wire: bytes) -> bytes:
    """Chunked framing taken off the simple way; the wire must be whole chunks whose heads are digits only."""
    payload = b""
    while wire:
        size, _, wire = wire.partition(b"\r\n")
        assert size.strip(hexdigits.encode()) == b"", size
        length = int(size, 16)
        assert wire[length : length + 2] == b"\r\n"
        payload, wire = payload + wire[:length], wire[length + 2 :]
    return payload
