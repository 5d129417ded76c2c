"""Answers that providers make in the background: polled until they have ended, then billed."""
