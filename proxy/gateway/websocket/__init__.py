"""Sessions of many exchanges over a WebSocket between a client and a provider."""
