"""Relays requests between clients and providers. It makes no decision about money."""
