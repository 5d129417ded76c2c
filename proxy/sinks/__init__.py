"""What is pushed to other systems: usage events and webhooks."""
