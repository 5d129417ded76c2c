"""Is a deployment fit to serve, and what is to be done where it is not?

Law: it looks and changes nothing (one temporary file aside), shows no secret, and waits for nobody longer than it says.
Every check stands alone: one that fails, or never answers, hides none of the others.
"""
