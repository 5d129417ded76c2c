"""HTTP for both listeners: connections, heads, bodies, framing, errors, the closed table of routes."""
