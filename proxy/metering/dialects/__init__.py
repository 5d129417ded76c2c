"""Wire dialects, one folder per family."""
