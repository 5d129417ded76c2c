"""Grants in SQL: what they are, what charges burn of them, and the entries of their beginning and their end."""
