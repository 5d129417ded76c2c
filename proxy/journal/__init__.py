"""The local durable outbox: an append-only log of exchange records, and a table of their progress."""
