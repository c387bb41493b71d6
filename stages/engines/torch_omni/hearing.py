"""The sounds of a session: embeddings of what was said, by turn, while they come in and as long as there is room.

Rules
* A sound has at most `rows_max` embeddings, as many as a prompt can hold, and so have all of a session together, not
  counting those that are still coming in. Where that is exceeded the oldest are forgotten; what is forgotten is read
  from its text, if it has one.
* A turn that is heard again gets a sound with a new number, so that nothing mistakes it for the old one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from stages.contracts import Message
from stages.engines.torch_omni.prompt import Sound
from stages.stream import StageFailure


class Hearing:
    """All sounds of one session, oldest first."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self._sounds: dict[int, Sound] = {}
        self._numbers = itertools.count()

    @property
    def by_turn(self) -> Mapping[int, Sound]:
        return self._sounds

    def by_number(self) -> dict[int, Sound]:
        """The sounds by their numbers, which keys name."""
        return {sound.number: sound for sound in self._sounds.values()}

    def expect(self, turn: int) -> None:
        """`turn` is being heard: what is to be read of it waits for its end, even before anything has come."""
        if turn not in self._sounds:
            self._sounds[turn] = Sound(next(self._numbers))

    def add(self, turn: int, rows: Sequence[object], *, complete: bool) -> None:
        """`turn` goes on with `rows`. Raises `StageFailure("audio_too_long")` where it alone exceeds the room."""
        if turn in self._sounds and self._sounds[turn].complete:
            del self._sounds[turn]
        self.expect(turn)
        sound = self._sounds[turn]
        if len(sound.rows) + len(rows) > self._rows_max:
            raise StageFailure("audio_too_long", f"turn {turn} has more than {self._rows_max} embeddings of sound")
        sound.rows += rows
        sound.complete = complete
        self._make_room(turn)

    def _make_room(self, kept: int) -> None:
        excess = sum(len(sound.rows) for sound in self._sounds.values()) - self._rows_max
        for turn, sound in list(self._sounds.items()):
            if excess > 0 and turn != kept and sound.complete:
                excess -= len(self._sounds.pop(turn).rows)

    def waits(self, messages: Sequence[Message]) -> bool:
        """Whether a sound of `messages` is still coming in."""
        sounds = [self._sounds.get(message.audio_turn) for message in messages if message.audio_turn is not None]
        return not all(sound.complete for sound in sounds if sound is not None)

    def check(self, messages: Sequence[Message]) -> None:
        """Raises `StageFailure("audio_unknown")` for a message that has neither sound nor text."""
        for message in messages:
            if message.audio_turn is not None and not message.content and message.audio_turn not in self._sounds:
                raise StageFailure("audio_unknown", f"the sound of turn {message.audio_turn} is not here")

    def unfinished(self, turn: int) -> int:
        """How many embeddings of `turn` are here, where it has not come to its end."""
        sound = self._sounds.get(turn)
        return 0 if sound is None or sound.complete else len(sound.rows)

    def drop_unfinished(self, turn: int) -> None:
        """Forget `turn` unless it has come to its end."""
        sound = self._sounds.get(turn)
        if sound is not None and not sound.complete:
            del self._sounds[turn]
