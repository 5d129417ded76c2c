"""Wiring that proxies, workers and commands share."""
