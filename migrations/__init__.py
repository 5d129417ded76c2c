"""Alembic revisions of the ledger's tables.

Invariants: this folder is imported as `proxy.migrations`, by a link in proxy/, so that an installation has no package
`migrations`. Of `proxy`, a revision imports only that: its meaning never changes. Since 0007 none blocks a table that
is large or in use: steps.py has what changes those. A file that is named `0012_from_0009_what_it_does.py` lets
versions since revision 0009 start on the upgraded ledger; without that, older versions refuse it.
"""
