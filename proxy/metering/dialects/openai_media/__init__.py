"""OpenAI's images, speech and transcriptions."""
