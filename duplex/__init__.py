"""The service: configuration, command line, gateway, wire protocols, supervision. May import everything but `loadtest`."""
