"""Lists of models: configured models, lists of providers, and the formats of clients.

Invariants: a client sees a model only if its key may use it. A provider's list is requested only after a client's
request, once at a time, within limits of time, size and number, and kept for all clients. From a provider's answer,
only names that a configuration could contain, numbers, and words of fixed sets are shown. A list is no exchange:
nothing is metered, reserved or billed.
"""
