"""How long audio is, by what its bytes decode to. Pure."""
