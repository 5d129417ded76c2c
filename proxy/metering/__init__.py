"""Bytes in, facts out: what a provider sent, read as token counts. Sans-IO, no clock, no log.

Nothing here waits, sleeps, raises for what a provider sends, or holds a stream back.
"""
