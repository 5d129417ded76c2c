"""Settling: usage records become ledger entries, with the balances that they change."""
