"""Keys, accounts, limits, credit, and the audit log of changes to them."""
