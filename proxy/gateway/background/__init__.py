"""Answers that providers make in the background: asked for until they have ended, and billed by what they say."""
