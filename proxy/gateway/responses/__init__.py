"""Stored responses, asked for by their ids."""
