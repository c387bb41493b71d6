"""The service: configuration, command line, gateway, wire protocols, supervision.

May import everything; only its command line imports `loadtest`.
"""
