"""Mistral's fill-in-the-middle completions, its agents and its OCR."""
