"""Secrets of keys: generation, format check, hash.

Invariant: a secret is shown once, when it is generated, and never stored. Only its keyed hash is stored, and the pepper
is outside the database, so the content of a stolen database grants no access."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from proxy.foundation.secret import Secret

PREFIX = "tw-"

# 256 bits; the documentation promises 192.
SECRET_BYTES = 32
PEPPER_BYTES = 32
# The longest key of BLAKE2b.
PEPPER_BYTES_MAX = hashlib.blake2b.MAX_KEY_SIZE

_SECRET = re.compile(r"tw-[A-Za-z0-9_-]{43}", re.ASCII)


class BadPepperError(ValueError):
    """The pepper file is invalid; with another or an empty pepper no key would be valid."""


def new_secret() -> Secret:
    """A new secret: `tw-` and 256 random bits."""
    return Secret(PREFIX + secrets.token_urlsafe(SECRET_BYTES))


def parse(presented: str) -> str | None:
    """`presented` if it has the format of a secret; else None. Cheap: call it before any look-up."""
    return presented if _SECRET.fullmatch(presented) else None


def digest(secret: str, pepper: bytes) -> bytes:
    """The stored hash of a secret: BLAKE2b keyed with the pepper; 32 bytes. `secret`: valid, see `parse`."""
    return hashlib.blake2b(secret.encode("ascii"), key=pepper, digest_size=32).digest()


def hint(secret: str) -> str:
    """The end of the secret, to recognise a key: `tw-…abcd`."""
    return f"{PREFIX}…{secret[-4:]}"


def load_pepper(path: Path) -> bytes:
    """The pepper in `path`; if the file is missing, generate one, readable by its owner only.

    Processes that start at the same time get the same one. Raises OSError; BadPepperError for a file of wrong length.
    """
    with suppress(FileNotFoundError):
        return _checked(path, path.read_bytes())
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    _write_private(draft, secrets.token_bytes(PEPPER_BYTES))
    try:
        with suppress(FileExistsError):
            os.link(draft, path)  # unlike a rename, it fails if another process was first
    finally:
        draft.unlink()
    _sync(path.parent)
    return _checked(path, path.read_bytes())


def _checked(path: Path, pepper: bytes) -> bytes:
    if not PEPPER_BYTES <= len(pepper) <= PEPPER_BYTES_MAX:
        limits = f"{PEPPER_BYTES} to {PEPPER_BYTES_MAX}"
        raise BadPepperError(f"pepper file {path}: {len(pepper)} bytes, must have {limits}: restore the original")
    return pepper


def _write_private(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(fd)


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
