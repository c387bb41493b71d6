"""What only a machine says at the far end of a line: the greeting of a mailbox, a queue, a menu. By its words.

Rules
* English only, as `media.backchannels` is.
* A phrase is here where a caller seldom says it to somebody who answers: "please hold the line" is one, "hold on" is
  none, nor is "can I leave a message".
* Of several, the mailbox goes first, since its beep follows; then the queue.
"""

from __future__ import annotations

import re
from enum import Enum

from media.backchannels import words


class Announcement(Enum):
    """`MAILBOX`: an answering machine, or a mailbox, which will beep. `QUEUE`: somebody may come later. `MENU`: asks
    for a key."""

    MAILBOX = "answering_machine"
    QUEUE = "queue"
    MENU = "menu"


_KEY = r"(?:\d|zero|one|two|three|four|five|six|seven|eight|nine|star|pound|hash|the (?:star|pound|hash) key)"
_A_MESSAGE = r"(?:a|your) (?:\w+ ){0,2}message"
_AWAY = r"(?:currently |presently |just )?(?:not available|unavailable)"
_PHRASES = {
    Announcement.MAILBOX: (
        rf"please (?:leave|record) (?:me |us |him |her |them )?{_A_MESSAGE}",
        rf"leave (?:me |us ){_A_MESSAGE}",
        rf"(?:leave|record) {_A_MESSAGE} (?:and|after|at|for)",
        rf"you (?:can|may) (?:leave|record) {_A_MESSAGE}",
        r"(?:leave|record) (?:me |us )?your name",
        r"(?:after|at|wait for|on) the (?:sound of the )?(?:tone|beep)",
        rf"(?:i'm|i am|we're|we are) {_AWAY}",
        rf"you (?:\w+ ){{1,5}}is {_AWAY}",
        r"(?:can't|cannot|can not|unable to|not able to) (?:take your call|(?:come|get) to the phone|answer the phone)",
        r"(?:mailbox|mail box|voice ?mail) (?:of|is full|belonging)",
        r"reached the (?:voice ?mail|mailbox|mail box|answering)",
        r"forwarded to (?:an? )?(?:automated )?(?:voice|message)",
    ),
    Announcement.QUEUE: (
        r"your call is (?:very |extremely )?important",
        r"your call (?:will be|is being) (?:answered|transferred|connected)",
        r"please (?:continue to )?hold(?: the line| for the next| while)",
        r"(?:please|continue to|kindly) (?:stay|remain) on the line",
        r"continue to hold",
        r"thank you for (?:holding|your patience)",
        r"(?:agents|representatives|operators|advisers|advisors|lines) are (?:\w+ )?(?:busy|assisting|helping|engaged)",
        r"next available (?:agent|representative|operator|adviser|advisor)",
        r"you are (?:number|caller|at position) \w+",
        r"(?:estimated|approximate|expected) wait(?:ing)? time",
    ),
    Announcement.MENU: (
        rf"(?:for|to|if) (?:\S+ ){{1,8}}(?:please )?(?:press|dial) {_KEY}",
        rf"(?:press|dial) {_KEY} (?:for|to|if|now)",
        r"(?:please listen carefully|listen carefully (?:as|to|because))",
        r"(?:menu )?options have (?:recently )?changed",
        r"following (?:menu|options)",
    ),
}
_PATTERNS = {kind: re.compile(rf"(?<!\S)(?:{'|'.join(phrases)})(?!\S)") for kind, phrases in _PHRASES.items()}


def announcement(text: str) -> Announcement | None:
    """What a machine's `text` is; None where a person may have said it."""
    said = " ".join(words(text))
    return next((kind for kind, pattern in _PATTERNS.items() if pattern.search(said)), None)
