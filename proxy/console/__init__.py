"""What people look at and change: APIs of usage, cost, exchanges, keys and running streams, on a listener of its own.

Law: an operator sees all, a key's owner what is of that key, and nobody a word of a prompt or an answer. Every route is
one line of a table, from which its checks and its document are made.
"""
