"""A suite that any gateway can be run against: scripted providers, and what each exchange truly costs."""
