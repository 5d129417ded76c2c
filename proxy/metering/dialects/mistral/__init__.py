"""Mistral's fill-in-the-middle completions, and its agents."""
