"""Sinks: usage events and webhooks that are pushed to other systems."""
