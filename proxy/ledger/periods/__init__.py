"""Billing periods: the entries of each statement, closing a month, and the stored form of closed months."""
