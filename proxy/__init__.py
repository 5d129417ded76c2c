"""Tokenweir: a weir measures the flow of a stream without holding it back.

The path of one request:

* `gateway/server.py` matches its path exactly; `gateway/chat.py` asks who it is (`keys/`), reads the body strictly,
  finds the providers and pins the price (`billing/prices.py`).
* `outbox.py` opens the exchange: a frame in the journal (`pipeline/journal.py`) and a slot in the progress table
  (`pipeline/progress.py`). Only then does `gateway/exchange.py` send it up; where a
  provider gives nothing, `gateway/asking.py` passes it on to the next.
* `gateway/relay.py` passes every piece on in the turn it arrives: progress, write, meter. `metering/` reads a copy.
* However it ends, `gateway/closing.py` writes one `UsageRecord` (`billing/record.py`) into the journal.
* `ledger/settler.py` turns it into an entry (`billing/settlement.py`) and commits it with the balance; the journal
  forgets it.
* After a crash `pipeline/recovery.py` closes what was open from its recorded progress.

Importing this package runs nothing.
"""

__version__ = "0.1.0"
