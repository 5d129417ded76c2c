"""Between a client and a provider: relays bytes, and decides nothing about money."""
