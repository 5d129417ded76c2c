"""Streams that broke off on the client's side are resumed from memory."""
