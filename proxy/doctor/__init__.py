"""Checks a deployment and advises what to fix.

Invariants: it changes nothing, except for one temporary file. It shows no secret. Every check has a time limit, and a
check that fails or hangs hides none of the others.
"""
