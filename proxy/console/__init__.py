"""The operator's console: a page and an API for usage, cost, exchanges, keys and running streams, on its own listener.

Invariants:
- An operator sees all keys; a key sees only its own data.
- No prompt and no answer text is shown to anyone.
- Every route is one `Endpoint`, from which its checks and its OpenAPI entry are derived.
"""
