"""Answers that providers make in the background: polled until they have ended, then billed; and the usage of answers
that were estimated: asked for afterwards."""
