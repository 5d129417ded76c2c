"""Google's interactions."""
