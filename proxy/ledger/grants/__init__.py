"""Grants in SQL: the grants, the amounts that charges burn, and the entries of beginnings and ends."""
