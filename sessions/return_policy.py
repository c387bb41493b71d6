"""What is done where a client comes back to a conversation that was left unfinished, as its operator wants it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AfterResume = Literal["wait", "ask", "answer"]
RESUME_QUESTION = "Sorry, I was cut off. Shall I go on?"


@dataclass(frozen=True, slots=True)
class ReturnPolicy:
    """`wait` for the caller; `answer` what they said, or say the rest of what was being said; `ask` the `question`."""

    then: AfterResume = "wait"
    question: str = RESUME_QUESTION
