"""Price lists, the rules that change them, and what usage comes to by them. Pure."""
