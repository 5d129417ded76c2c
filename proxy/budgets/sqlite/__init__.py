"""The store of reservations for one machine."""
