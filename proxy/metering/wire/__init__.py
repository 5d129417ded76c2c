"""Bytes to events: framing of bodies and reading of JSON. Pure."""
