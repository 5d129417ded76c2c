"""Alembic revisions of the ledger's tables.

Invariants: a revision never imports `proxy`: its meaning never changes. Since 0007 none blocks a table that is large or
in use: steps.py has what changes those. A file that is named `0012_from_0009_what_it_does.py` lets versions since
revision 0009 start on the upgraded ledger; without that, older versions refuse it.
"""
