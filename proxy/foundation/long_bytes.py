"""Searches and copies long bytes, for a thread that must not hold the interpreter for long."""

from __future__ import annotations

# Bytes that one call searches or copies, in a millisecond or two.
STEP_BYTES = 1 << 20


def find(body: bytes, sought: bytes, at: int = 0) -> int:
    """The offset of the first occurrence from `at` on; -1: there is none."""
    while at < len(body):
        found = body.find(sought, at, at + STEP_BYTES + len(sought) - 1)
        if found >= 0:
            return found
        at += STEP_BYTES
    return -1


def copied(body: bytes, start: int, end: int) -> bytes:
    """`body[start:end]`. (A long `join` lets others have the interpreter.)"""
    if end - start <= STEP_BYTES:
        return body[start:end]
    return b"".join([body[at : min(at + STEP_BYTES, end)] for at in range(start, end, STEP_BYTES)])
