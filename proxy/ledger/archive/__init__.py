"""Months whose entries were moved from the ledger into files."""
