"""Streams that broke off on the client's side are taken up again, from memory."""
