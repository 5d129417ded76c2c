"""Cohere's chat and embed."""
