"""The invariants of the ledger, and the checks that find a violation."""
