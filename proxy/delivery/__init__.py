"""Records on their way from a journal to the ledger: queues, shipper, leases, sweeper."""
