"""The provider's side: connections, health, routing."""
