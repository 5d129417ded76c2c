"""Tells the cost of an answer in its usage object, as OpenRouter does: the request's `usage`, and the edited bytes."""
