"""Measurements of the running service, from the caller's ear. `python -m benchmarks --help` lists them."""
