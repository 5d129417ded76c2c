"""API keys and Idempotency-Keys: authentication of a request, and detection of repeated requests."""
