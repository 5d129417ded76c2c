"""Records become ledger entries here, with the balances they change."""
