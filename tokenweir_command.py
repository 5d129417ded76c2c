"""The command `tokenweir`, once it is certain that the package `proxy` is Tokenweir's.

`proxy` is a common name. Another module of that name is imported instead if its folder is on PYTHONPATH, and another
distribution that has such a package replaces the files of this one. Invariant: neither is imported.
"""

from __future__ import annotations

import os
import sys

# How the file of the package begins.
_MARK = b'"""Tokenweir'
_REMEDY = "install Tokenweir again, in an environment of its own"


def main() -> int:
    """Run the command. Returns its exit code."""
    if reason := _clash():
        print(f"tokenweir: {reason}", file=sys.stderr)
        return 1
    from proxy.cli import main as run

    return run()


def _clash() -> str | None:
    """Why `proxy` cannot be imported. It is expected beside this file."""
    from importlib.util import find_spec

    found, own = find_spec("proxy"), os.path.join(os.path.dirname(__file__), "proxy", "__init__.py")
    if found is None or found.loader is None or found.origin is None:
        return f"{own} is missing: {_REMEDY}"
    if found.origin != own:
        return f"{found.origin} would be imported instead of {own}: rename it, or remove its folder from PYTHONPATH"
    with open(own, "rb") as file:
        if file.read(len(_MARK)) != _MARK:
            return f"{own} has been replaced{_by_whom()}: {_REMEDY}"
    return None


def _by_whom() -> str:
    from importlib.metadata import distributions

    owners = [
        f"{one.name} {one.version}"
        for one in distributions()
        if one.name != "tokenweir" and any(str(file) == "proxy/__init__.py" for file in one.files or ())
    ]
    return f" by {', '.join(owners)}" if owners else ""
