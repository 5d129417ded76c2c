"""Usage, statements, exports and explanations: read-only views of the ledger."""
