"""Any server: each entry whole, signed like alerts."""
