"""Admission control: budgets and rate limits are checked and reserved before a request is sent."""
