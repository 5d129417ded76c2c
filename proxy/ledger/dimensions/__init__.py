"""End users, sessions, runs and tags in the ledger: their values, and the usage of each."""
