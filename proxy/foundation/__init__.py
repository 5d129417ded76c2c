"""Helpers that every package may import: tasks, ids, secrets, durations, outages."""
