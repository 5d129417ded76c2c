"""What a client may ask about its own key: limits, spend, what is left, and the charge of an exchange."""
