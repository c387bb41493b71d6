"""The window of a link: how many bytes of payload frames may be in flight on it, in each direction.

Theory of operation
    Both sides know the window, so a link starts with a full one. The sender takes the bytes of a payload frame, its
    length included, before it writes the frame. The receiver gives them back once it has dealt with the frame, several
    frames at a time, so that small ones cost no answer each.

Rules
* A sender waits until the largest frame would fit. What the receiver may keep back leaves room for that, so once all
  has been taken, nothing waits for ever.
"""

from __future__ import annotations

from stages.messages import FrameError

FRAME_BYTES_MAX = 1 << 18  # a prompt of a full context is about 64 KiB; everything else is far smaller
HEADER_BYTES = 4
# 64 of the largest payloads that travel in a frame, or four of the largest frames of a link without an arena.
LINK_WINDOW_BYTES = 1 << 20
GIVE_BACK_BYTES = LINK_WINDOW_BYTES // 4

assert LINK_WINDOW_BYTES - GIVE_BACK_BYTES >= FRAME_BYTES_MAX + HEADER_BYTES, "else a sender could wait for ever"


class Intake:
    """The receiver's side of the window."""

    def __init__(self) -> None:
        self._in_flight = 0
        self._dealt_with = 0

    def came(self, frame_bytes: int) -> None:
        """A payload frame has come. Raises `FrameError` where the window was empty."""
        self._in_flight += frame_bytes
        if self._in_flight > LINK_WINDOW_BYTES:
            raise FrameError(f"{self._in_flight} bytes of payload in flight, the window is {LINK_WINDOW_BYTES}")

    def dealt_with(self, frame_bytes: int) -> int:
        """What is to be given back now; 0 for nothing yet."""
        self._dealt_with += frame_bytes
        if self._dealt_with < GIVE_BACK_BYTES:
            return 0
        given_back, self._dealt_with = self._dealt_with, 0
        self._in_flight -= given_back
        return given_back
