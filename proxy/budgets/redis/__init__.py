"""The store of reservations for many machines."""
