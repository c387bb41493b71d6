"""Telephones: carriers' WebSockets of media, and the calls that come over them."""
