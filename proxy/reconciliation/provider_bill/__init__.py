"""A provider's bill compared with the ledger."""
