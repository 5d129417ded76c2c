"""Wiring: settings to objects to start and stop."""
