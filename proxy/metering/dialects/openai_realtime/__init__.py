"""OpenAI's Realtime: conversations over a WebSocket, in text and audio."""
