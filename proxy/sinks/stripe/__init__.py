"""Stripe: `POST /v1/billing/meter_events`."""
