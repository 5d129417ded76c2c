"""The wiring of a proxy process."""
