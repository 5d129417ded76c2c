"""Checks a deployment and advises what to fix.

Invariants: a check changes nothing, except for one temporary file, and shows no secret. Every check has a time limit; a
check that fails or hangs does not stop the others.
"""
