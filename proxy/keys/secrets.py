"""Secrets of keys: generation, format check, hash.

Invariant: a secret is shown once, when it is generated, and never stored. Only its keyed hash is stored, and the pepper
is outside the database: the content of a stolen database gives no access.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import secrets
import zlib
from contextlib import suppress
from pathlib import Path

from proxy.foundation.files import sync, write_private
from proxy.foundation.secret import Secret
from proxy.keys import narrowing
from proxy.keys.narrowing import narrowable

PREFIX = "tw-"

# 256 bits; the documentation promises 192.
SECRET_BYTES = 32
PEPPER_BYTES = 32
# The longest key of BLAKE2b.
PEPPER_BYTES_MAX = hashlib.blake2b.MAX_KEY_SIZE

_RANDOM_CHARS, _CHECKSUM_CHARS = 43, 6
_SECRET = re.compile(rf"(tw-[A-Za-z0-9_-]{{{_RANDOM_CHARS}}})([A-Za-z0-9_-]{{{_CHECKSUM_CHARS}}})?", re.ASCII)


class BadPepperError(ValueError):
    """The pepper file is invalid; with another or an empty pepper no key would be valid."""


def new_secret() -> Secret:
    """A new secret: `tw-`, 256 random bits, and a checksum."""
    random = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    return Secret(random + _checksum(random))


def parse(presented: str) -> str | None:
    """`presented` if its format is that of a secret; else None. Cheap: call it before any look-up.

    Secrets of 0.1 have no checksum. A secret with a wrong checksum (a typing error, a guess) is refused without a
    look-up.
    """
    found = _SECRET.fullmatch(presented)
    if found is None or (found[2] is not None and found[2] != _checksum(found[1])):
        return None
    return presented


def _checksum(random: str) -> str:
    """The checksum of a secret's random part. It detects typing errors, not forgeries: every reader of this code can
    compute it."""
    crc = zlib.crc32(random.encode("ascii")).to_bytes(4, "big")
    return base64.urlsafe_b64encode(crc).decode("ascii")[:_CHECKSUM_CHARS]


def digest(secret: str, pepper: bytes) -> bytes:
    """The stored hash of a secret: BLAKE2b keyed with the pepper; 32 bytes. `secret`: valid, see `parse`."""
    return hashlib.blake2b(secret.encode("ascii"), key=pepper, digest_size=32).digest()


def hint(secret: str) -> str:
    """The end of the secret, to recognise a key: `tw-…abcd`."""
    return f"{PREFIX}…{secret[-4:]}"


def new_hashed(pepper: bytes, narrowable_id: str | None = None) -> tuple[str, bytes, str]:
    """A new secret, its digest and its hint. `narrowable_id`: the id of the key; the secret is then its narrowable
    key (see `narrowing`)."""
    secret = new_secret().reveal()
    hashed = digest(secret, pepper)
    if narrowable_id is not None:
        secret = narrowable(narrowable_id, hashed, pepper)
    return secret, hashed, hint(secret)


def is_ours(presented: str) -> bool:
    """True if the format is that of a secret, or of a narrowable or narrowed key."""
    return parse(presented) is not None or narrowing.parse(presented) is not None


def load_pepper(path: Path) -> bytes:
    """The pepper in `path`; a missing file is created, readable by its owner only. Processes that start at the same
    time get equal peppers. Raises OSError; BadPepperError for a file of wrong length."""
    with suppress(FileNotFoundError):
        return _checked(path, path.read_bytes())
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    write_private(draft, secrets.token_bytes(PEPPER_BYTES))
    try:
        with suppress(FileExistsError):
            os.link(draft, path)  # unlike a rename, it fails if another process was first
    finally:
        draft.unlink()
    sync(path.parent)
    return _checked(path, path.read_bytes())


def _checked(path: Path, pepper: bytes) -> bytes:
    if not PEPPER_BYTES <= len(pepper) <= PEPPER_BYTES_MAX:
        limits = f"{PEPPER_BYTES} to {PEPPER_BYTES_MAX}"
        raise BadPepperError(f"pepper file {path}: {len(pepper)} bytes, must have {limits}: restore the original")
    return pepper
