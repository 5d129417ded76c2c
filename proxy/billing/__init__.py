"""Readings into money. Pure: integers and values only; no clock, no I/O."""
