"""The composition root: settings → objects → start and stop. The one room that knows everybody.

`Proxy` relays and meters, `Worker` settles what proxies queued, `Fleet` is several proxies on one port, `Store` is the
ledger and the keys for a command.
"""
