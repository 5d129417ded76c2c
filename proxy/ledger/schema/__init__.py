"""Tables, partitions, migrations and backups of the ledger."""
