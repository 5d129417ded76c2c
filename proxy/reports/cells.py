"""Cells of CSV files. Law: no text that a client chose is taken for a formula by whoever opens the file."""

from __future__ import annotations

# What spreadsheets take for the beginning of a formula, or drop before they look.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")


def plain(text: str) -> str:
    """`text`, behind an apostrophe if a spreadsheet would calculate it. No name, model or id begins like that in good
    faith."""
    return f"'{text}" if text.startswith(_FORMULAS) else text
