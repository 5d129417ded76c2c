"""The ledger: its schema, the settling of records into entries, and the accounts that entries belong to."""
