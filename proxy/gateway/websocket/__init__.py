"""WebSockets between clients and providers: a session of many exchanges."""
