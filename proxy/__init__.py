"""Tokenweir: a streaming-aware reverse proxy that meters and bills LLM traffic.

The path of one request:

* `http/server.py` matches the path exactly. `gateway/exchange/handler.py` identifies the key (`keys/`), reads the body
  strictly, finds the providers and pins the price (`billing/pricing/prices.py`).
* `gateway/outbox.py` opens the exchange: a frame in the journal (`journal/journal.py`) and a slot in the progress
  table (`journal/progress.py`). Only then does `gateway/exchange/exchange.py` send the request to a provider; if that
  provider fails before it answers, `gateway/upstream/provider_call.py` fails over to the next one.
* From then on everything that happens is an event, and `gateway/exchange/lifecycle.py` is the table of what to do about
  it: when the response begins, when reading pauses, what a client that leaves means, how it ends.
* A WebSocket (`gateway/websocket/session.py`) carries many exchanges: each is opened and closed as one of HTTP is.
* `gateway/exchange/relay.py` writes each piece of the answer to the client as soon as it arrives, after recording the
  progress. The meter (`metering/`) reads a copy.
* However the exchange ends, `gateway/exchange/open_exchange.py` writes one `UsageRecord` (`billing/record.py`) into the
  journal. If its provider goes on in the background, `gateway/background/` asks it until the answer has ended; if its
  usage was estimated, `gateway/background/later_usage.py` asks for it afterwards.
* `ledger/settling/settler.py` turns the record into an entry (`billing/settlement.py`) and commits it together with the
  balance; then the journal deletes the record.
* After a crash, `journal/recovery.py` closes the exchanges that were open, from their recorded progress.

Packages import one another in one direction only: see the import contract in `pyproject.toml`. Importing this package
runs nothing.
"""

__version__ = "0.2.0"
