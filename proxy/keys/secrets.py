"""Keys' secrets: made, recognised, hashed. Law: a secret is shown once, when it is made, and kept nowhere; what is
kept is its HMAC under a pepper that lives outside the database, so that a stolen database opens nothing."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from proxy.foundation.secret import Secret

PREFIX = "tw-"

# 256 bits: no guessing, and room to spare over the 192 promised.
SECRET_BYTES = 32
PEPPER_BYTES = 32
# As many as BLAKE2b takes for a key.
PEPPER_BYTES_MAX = hashlib.blake2b.MAX_KEY_SIZE

_SECRET = re.compile(r"tw-[A-Za-z0-9_-]{43}", re.ASCII)


class BadPepperError(ValueError):
    """The pepper file is not one; going on would lock every key out, or hash with nothing."""


def new_secret() -> Secret:
    """A new key: `tw-` and 256 random bits."""
    return Secret(PREFIX + secrets.token_urlsafe(SECRET_BYTES))


def parse(presented: str) -> str | None:
    """`presented`, if it has the form of a key; else None. Cheap: comes before any look-up."""
    return presented if _SECRET.fullmatch(presented) else None


def digest(secret: str, pepper: bytes) -> bytes:
    """What is kept of a secret: its BLAKE2b, keyed with the pepper; 32 bytes. `secret` has passed `parse`."""
    return hashlib.blake2b(secret.encode("ascii"), key=pepper, digest_size=32).digest()


def hint(secret: str) -> str:
    """Enough to recognise a key by, and no help in guessing it: `tw-…abcd`."""
    return f"{PREFIX}…{secret[-4:]}"


def load_pepper(path: Path) -> bytes:
    """The pepper in `path`; the first time, a new one is put there, readable by its owner only.

    Processes that start together agree on one. Raises BadPepperError for an empty or short file, OSError.
    """
    with suppress(FileNotFoundError):
        return _checked(path, path.read_bytes())
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    _write_private(draft, secrets.token_bytes(PEPPER_BYTES))
    try:
        with suppress(FileExistsError):
            os.link(draft, path)  # unlike a rename, fails if another process was first
    finally:
        draft.unlink()
    _sync(path.parent)
    return _checked(path, path.read_bytes())


def _checked(path: Path, pepper: bytes) -> bytes:
    if not PEPPER_BYTES <= len(pepper) <= PEPPER_BYTES_MAX:
        limits = f"{PEPPER_BYTES} to {PEPPER_BYTES_MAX}"
        raise BadPepperError(f"{path} holds {len(pepper)} bytes, a pepper has {limits}")
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
