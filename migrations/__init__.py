"""The history of the ledger's tables, for Alembic. A revision never imports `proxy`: it must mean the same for ever."""
