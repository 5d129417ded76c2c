"""Answers that providers make in the background: polled until they have ended, then billed. And the usage of estimated
answers, requested afterwards."""
