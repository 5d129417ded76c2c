"""API keys and Idempotency-Keys: which key a request has, and whether the request came before."""
