"""What the command line says to a person: on standard error, so that standard output stays for results."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Write one line."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
