"""Estimates of unreported token counts, learned from reported ones. Pure."""
