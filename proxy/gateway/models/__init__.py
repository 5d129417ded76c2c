"""Lists of models: what is configured, what providers list, and the formats in which clients read it.

Invariants: a client sees a model only if its key may use it. A provider is asked for its list only when a client asks,
once at a time, within limits of time, size and number, and never for one client's sake alone: the answer is kept. Of
what a provider says, only names that a configuration could hold, numbers, and words of fixed sets are passed on. A list
is no exchange: nothing is metered, reserved or billed.
"""
