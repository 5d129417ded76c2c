"""Reads provider answers as usage counts. Sans-IO: no clock, no log.

Invariant: nothing here waits, delays a stream, or raises for provider data.
"""
