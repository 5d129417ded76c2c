"""The life of one exchange: admission, relay, settlement."""
