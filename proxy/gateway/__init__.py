"""Relays requests between clients and providers. It makes no decision about money.

The core is `exchange/` (one request, from admission to its record), `upstream/` (the connection to a provider) and the
files beside them; `tapes/` keeps streams in memory for it. Each other package stands on the core and can be read alone:
`websocket/` (sessions of many exchanges), `background/` (answers that a provider makes without a reader), `resume/`
(streams that a client reads again), `responses/` (stored responses), `batches/` (files and batches), `models/` (model
lists). The import contract in `pyproject.toml` keeps the core from importing them.
"""
