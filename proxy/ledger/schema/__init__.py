"""The ledger's tables, partitions, migrations and backups."""
