"""Billing periods: what is on which statement, closing, and the closed form."""
