"""Import of usage that never passed the proxy."""
