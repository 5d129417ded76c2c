"""Alembic revisions of the ledger's tables. Invariant: a revision never imports `proxy`: its meaning never changes."""
