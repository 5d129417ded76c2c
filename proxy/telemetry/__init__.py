"""Metrics and traces. Imports nothing above the ledger."""
