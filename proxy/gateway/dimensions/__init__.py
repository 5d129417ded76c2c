"""The dimensions of requests: read from what clients send, and exchanged for value ids at admission."""
