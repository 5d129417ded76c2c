"""Request and response bodies of the console's API."""
