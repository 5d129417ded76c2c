"""The value of a variable, from the environment or from a file: for secrets that no environment should have.

The order: the variable `NAME`; else the file that `NAME_FILE` names; else the file `NAME`, or `tokenweir_NAME`, in
`$CREDENTIALS_DIRECTORY`, where systemd puts credentials (the latter for `LoadCredential=tokenweir:/a/folder`). A file
is read at each look, so that a reload finds its new content.

Invariants: `NAME` beside `NAME_FILE` is an error, even if one is empty. An error about a file names the variable and
the file, and shows nothing of the content.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from errno import EINVAL
from pathlib import Path

from proxy.settings.faults import SettingsError

# Longer than any provider's key; a longer text is a file pasted in the wrong place.
SECRET_CHARS_MAX = 4096

CREDENTIALS = "CREDENTIALS_DIRECTORY"
_SYSTEMD_PREFIX = "tokenweir_"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def variable(env: Mapping[str, str], name: str) -> str | None:
    """The value of a variable; None: neither the environment nor a file has it. Raises SettingsError."""
    value, named = env.get(name), env.get(f"{name}_FILE")
    if named is None:
        return value if value is not None else _credential(env, name)
    if value is not None:
        raise SettingsError(f"the environment variables {name} and {name}_FILE are both set: remove one of them")
    if not named:
        raise SettingsError(f"the environment variable {name}_FILE is empty: it must name a file")
    return _content(Path(named), f"{name}_FILE")


def not_set(name: str) -> str:
    """The error about a variable that has no value."""
    return f"the environment variable {name} is not set (nor {name}_FILE)"


def _credential(env: Mapping[str, str], name: str) -> str | None:
    folder = env.get(CREDENTIALS)
    for file in _places(folder, name) if folder else ():
        if os.path.lexists(file):
            return _content(file, f"{name}, from {CREDENTIALS}")
    return None


def _places(folder: str, name: str) -> Iterator[Path]:
    yield Path(folder) / name
    yield Path(folder) / f"{_SYSTEMD_PREFIX}{name}"


def _content(file: Path, source: str) -> str:
    """The text of a file, without one line end at its end. Raises SettingsError."""

    def wrong(why: str) -> SettingsError:
        return SettingsError(f"{source}: {file}: {why}")

    try:
        text = _bytes(file).decode("utf-8").removesuffix("\n")
    except OSError as failure:
        raise wrong(failure.strerror or "cannot be read") from None
    except ValueError:  # a name may have a null byte, too
        raise wrong("is not UTF-8 text") from None
    if len(text) > SECRET_CHARS_MAX:
        raise wrong(f"is longer than {SECRET_CHARS_MAX} characters; is this the right file?")
    if not text:
        raise wrong("is empty")
    if text != text.strip():
        raise wrong("begins or ends with a blank or a second line end: remove it")
    if _CONTROL.search(text):
        raise wrong("has several lines, or control characters")
    return text


def _bytes(file: Path) -> bytes:
    """The beginning of a file, longer than a value may be. Raises OSError, ValueError."""
    number = os.open(file, os.O_RDONLY | os.O_NONBLOCK)  # a pipe without a writer would stop a reload
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(EINVAL, "is no regular file")
        with open(number, "rb", closefd=False) as opened:
            return opened.read(4 * SECRET_CHARS_MAX + 1)
    finally:
        os.close(number)
