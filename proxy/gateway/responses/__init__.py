"""Stored responses, requested by their ids."""
