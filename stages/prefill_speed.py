"""How long it will take to read a prompt, judged by what reading has taken.

Rules
* An estimate moves a quarter of the way to what each piece took, so that a machine that has become busy is noticed
  within a few of them; a prompt that takes a second has at least five.
* Before anything was read nothing is expected: a wait is then noticed when it has lasted.
"""

from __future__ import annotations

STEP_SHIFT = 2


class PrefillSpeed:
    """Of one model on one machine, for all its sessions. Its tokens are counted as their reader counts them."""

    def __init__(self) -> None:
        self._token_ns = 0

    def observe(self, tokens: int, took_ns: int) -> None:
        """Reading `tokens`, at least one, took `took_ns`."""
        token_ns = took_ns // tokens
        self._token_ns += (token_ns - self._token_ns) >> STEP_SHIFT if self._token_ns else token_ns

    def predicted_ns(self, tokens: int) -> int:
        """How long reading `tokens` is expected to take; 0 where nothing is known."""
        return tokens * self._token_ns
