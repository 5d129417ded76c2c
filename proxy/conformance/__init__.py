"""A suite that tests any gateway: scripted providers, clients, and the true cost of each exchange."""
