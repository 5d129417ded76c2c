"""The ledger: its tables, the settling of records into entries, and the accounts that entries belong to."""
