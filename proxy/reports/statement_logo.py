"""The logo on statements."""

from __future__ import annotations

from typing import NamedTuple

from proxy.settings.statement import StatementSettings

BYTES_MAX = 256 << 10
_KINDS = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}


class Logo(NamedTuple):
    """An image file."""

    media_type: str
    content: bytes


def logo_of(letterhead: StatementSettings) -> Logo | None:
    """The logo; None: there is none. Raises ValueError that names the setting."""
    if letterhead.logo is None:
        return None
    try:
        with open(letterhead.logo, "rb") as file:
            content = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"statement.logo: {letterhead.logo}: {error.strerror}") from None
    if len(content) > BYTES_MAX:
        raise ValueError(f"statement.logo: {letterhead.logo}: must be at most {BYTES_MAX >> 10} KiB")
    kind = next((kind for start, kind in _KINDS.items() if content.startswith(start)), None)
    if kind is None:
        raise ValueError(f"statement.logo: {letterhead.logo}: must be a PNG or a JPEG file")
    return Logo(kind, content)
