"""Delivers records from journals to the ledger: queues, shipper, leases, sweeper."""
