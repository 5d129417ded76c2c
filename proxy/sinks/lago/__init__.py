"""Lago: `POST /api/v1/events/batch`."""
