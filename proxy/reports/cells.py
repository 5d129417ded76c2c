"""Cells of CSV files.

Invariant: a spreadsheet never evaluates text that a client chose.
"""

from __future__ import annotations

# Characters that start a formula in a spreadsheet, or that it strips before the check.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")


def safe_cell(text: str) -> str:
    """Prefixes formula-like text with an apostrophe."""
    return f"'{text}" if text.startswith(_FORMULAS) else text
