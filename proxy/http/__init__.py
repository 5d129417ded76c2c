"""HTTP for both listeners: connections, headers, bodies, framing, errors, the route table."""
