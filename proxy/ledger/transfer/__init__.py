"""Copies a ledger from SQLite to Postgres, and compares the two."""
