"""OpenMeter: `POST /api/v1/events`, a batch of CloudEvents 1.0."""
