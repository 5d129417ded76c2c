"""Mistral's fill-in-the-middle completions."""
