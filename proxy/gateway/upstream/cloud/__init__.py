"""Credentials of clouds: what is added to a request just before it is sent."""
