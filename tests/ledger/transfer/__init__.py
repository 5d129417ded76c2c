"""Copies of ledgers, from SQLite to Postgres."""
