"""Price lists, the rules that change them, and the charge for usage. Pure."""
