"""The local durable outbox: an append-only log of records and a table of progress."""
