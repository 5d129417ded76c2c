"""The length of audio, from its bytes. Pure."""
