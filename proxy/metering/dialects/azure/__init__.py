"""Azure OpenAI: OpenAI's shapes under deployments."""
