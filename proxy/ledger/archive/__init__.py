"""Months whose entries have left the ledger for files."""
