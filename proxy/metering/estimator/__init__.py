"""Token counts that nobody reported, and what they are learned from. Pure."""
