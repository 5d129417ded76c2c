"""Traces of exchanges for an OTLP collector: one span for each exchange, from its record. Off unless configured.

Invariants: traces are for diagnosis, never for billing; a collector that is down or slow loses spans and never delays a
stream. `span.py` makes spans without the SDK; only `export.py` imports it.
"""
