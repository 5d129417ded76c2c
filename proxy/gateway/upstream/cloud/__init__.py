"""Credentials of clouds, added to a request just before it is sent."""
