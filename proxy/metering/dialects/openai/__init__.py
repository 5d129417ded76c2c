"""OpenAI's chat completions and the endpoints that share its shapes."""
