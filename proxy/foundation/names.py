"""Names that people type: of keys, accounts, exchanges, models, sinks."""

from __future__ import annotations


class UnknownNameError(ValueError):
    """Nothing has this name; the message says what was looked for."""
