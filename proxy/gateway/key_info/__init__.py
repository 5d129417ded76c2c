"""The routes on which a client reads about its own key: limits, spend, remainder, and the charge of an exchange."""
