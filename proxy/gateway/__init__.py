"""Client ⇄ provider: the one room that speaks HTTP. It moves bytes, and decides nothing about money."""
