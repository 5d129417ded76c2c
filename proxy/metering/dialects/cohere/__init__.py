"""Cohere's chat."""
