"""Metrics and traces. Invariant: imports nothing above the ledger."""
