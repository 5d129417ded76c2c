"""Doors to databases: engines, statements, executors and the Redis client."""
