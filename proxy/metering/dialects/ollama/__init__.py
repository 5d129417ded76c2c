"""Ollama's chat, generate and embed."""
