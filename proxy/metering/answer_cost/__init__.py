"""Writes the cost of an answer into its usage object, as OpenRouter does, if the request has `usage`."""
