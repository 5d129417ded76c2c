"""Providers: connections, health, routing."""
