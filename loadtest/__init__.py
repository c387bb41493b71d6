"""Simulated callers: they measure the service from outside, over its public wire protocols. Imports only `media`."""
