"""Ollama's chat and generate."""
