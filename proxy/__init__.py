"""Tokenweir: a streaming-aware reverse proxy that meters and bills LLM traffic.

The path of one request:

* `http/server.py` matches the path exactly. `gateway/exchange/handler.py` identifies the key (`keys/`), reads the body
  strictly, finds the providers and pins the price (`billing/pricing/prices.py`).
* `gateway/outbox.py` opens the exchange: a frame in the journal (`journal/journal.py`) and a slot in the progress
  table (`journal/progress.py`). Only then does `gateway/exchange/exchange.py` send the request to a provider; if that
  provider fails before it answers, `gateway/upstream/provider_call.py` fails over to the next one.
* From then on each happening on the two connections is an event. The table in `gateway/exchange/lifecycle.py` has the
  actions for each event and state: when the response begins, when reading pauses, what follows when the client
  disconnects, how the exchange ends.
* A WebSocket (`gateway/websocket/session.py`) carries many exchanges: each is opened and closed like one over HTTP.
* `gateway/exchange/relay.py` writes each piece of the answer to the client as soon as it arrives, after recording the
  progress. The meter (`metering/`) reads a copy.
* However the exchange ends, `gateway/exchange/open_exchange.py` writes one `UsageRecord` (`billing/record.py`) into the
  journal. If the provider continues the answer in the background, `gateway/background/` polls for it until it has
  ended; if its usage was estimated, `gateway/background/later_usage.py` requests the usage afterwards.
* `ledger/settling/settler.py` turns the record into an entry (`billing/settlement.py`) and commits it together with the
  balance; then the journal deletes the record.
* After a crash, `journal/recovery.py` closes the exchanges that were open, from their recorded progress.

Packages import one another in one direction only: see the import contract in `pyproject.toml`. Importing this package
runs nothing.
"""

__version__ = "0.2.0"
