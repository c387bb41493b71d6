"""Who is told what happens in a call: its client, and those who look on.

Rules
* All hear the same, but for what answers a command: that is for whoever gave it.
* At most `OBSERVERS_MAX` look on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from duplex.transport import Observer
from sessions.events import CommandRefused, Event, ItemRetrieved

OBSERVERS_MAX = 4  # each is sent all of the conversation but its sound

_ANSWERS = (CommandRefused, ItemRetrieved)


class TooManyObserversError(RuntimeError):
    """As many look on as may: whoever wants to as well must wait."""


class Audience:
    """Of one call."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []
        self._asker: Observer | None = None

    @property
    def is_full(self) -> bool:
        """Nobody else may look on."""
        return len(self._observers) >= OBSERVERS_MAX

    def join(self, observer: Observer) -> None:
        """Tell `observer` too what happens. Raises `TooManyObserversError`."""
        if self.is_full:
            raise TooManyObserversError
        self._observers.append(observer)

    def leave(self, observer: Observer) -> None:
        """Tell it nothing more."""
        self._observers.remove(observer)

    @contextmanager
    def asked_by(self, observer: Observer) -> Iterator[None]:
        """What is done meanwhile, `observer` has asked for."""
        self._asker = observer
        try:
            yield
        finally:
            self._asker = None

    def tell(self, event: Event, client: Observer | None) -> None:
        """`client`: whose call it is; None: nobody is there."""
        is_answer = isinstance(event, _ANSWERS)
        first = self._asker if is_answer and self._asker is not None else client
        if first is not None:
            first.tell(event)
        for observer in () if is_answer else self._observers:
            observer.tell(event)
