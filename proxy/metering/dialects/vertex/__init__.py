"""Google's Vertex AI: its own models, and those of Anthropic and Mistral."""
