"""Traces of exchanges for an OTLP collector: a span for each, made of its record. Off unless it is configured.

Law: a trace is a copy for whoever looks for the cause of something; nothing is billed from it, and a collector that is
away or slow costs spans, never a stream. `span.py` says what a span tells and knows no SDK; `export.py` is the SDK's
side, and the one module that imports it.
"""
