"""What developers and `make` run: installing, and the checks of the project's own rules."""
