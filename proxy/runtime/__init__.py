"""Wiring: settings → objects → start and stop."""
