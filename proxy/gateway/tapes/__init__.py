"""Streams in memory, so that a client can resume one after a disconnect."""
