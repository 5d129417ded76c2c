"""Tokens of identity providers (OpenID Connect): their keys, their verification, and the authorization code flow.

Invariants:
- What an identity provider sends is bounded in time and size, and nothing of it is trusted before its signature is
  verified by a key of the configured issuer, with an asymmetric algorithm.
- Nothing here knows operators: `tokens` turns a JWT into claims for anyone.
"""
