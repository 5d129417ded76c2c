"""Helpers of several test packages: a provider in its own process, a raw client, a reference parser."""
