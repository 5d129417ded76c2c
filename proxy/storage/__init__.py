"""Access to databases: engines, prepared statements, executors and the Redis client."""
