"""The sound of a call's responses: how far each has gone, and what was heard of it."""

from __future__ import annotations

from media.chunk import ms_to_samples
from media.heard_estimate import Path
from media.playout import Playout, Reports
from sessions.heard import Cut, Heard
from sessions.items import Item
from sessions.settings import OUTPUT_RATE

FRAME_MS = 20


class Sounding:
    """`transport_lead_ms`: how far frames may run ahead of the ear on this transport; `recalls`: what its peer has not
    played yet can be taken back; `reports`: what says what was heard."""

    def __init__(self, transport_lead_ms: int, *, recalls: bool, reports: Reports = "acked") -> None:
        frame_samples, lead_ns = ms_to_samples(FRAME_MS, OUTPUT_RATE), transport_lead_ms * 1_000_000
        self._playout = Playout(OUTPUT_RATE, frame_samples, lead_ns, reports)
        self._heard = Heard(self._playout, recalls=recalls)
        self._refined: list[str] = []

    @property
    def underruns(self) -> int:
        return self._playout.underruns

    @property
    def played_out_ns(self) -> int:
        """When the ear has had all that was sent so far."""
        return self._playout.played_out_ns()

    def hold(self) -> None:
        """The caller may be about to interrupt: fall silent, and destroy nothing."""
        self._playout.hold()

    def resume(self) -> None:
        """They were not: go on where it stopped."""
        self._playout.resume()

    def broke_off(self, item: Item) -> None:
        """`item` is left of what another gateway was saying when it died; its client may tell what was heard of it."""
        self._heard.broke_off(item)

    # ---- more becomes known ------------------------------------------------------------------------

    def heard(self, response: str, samples: int, now_ns: int) -> None:
        """The ear has had `samples` of `response`, as its client reports."""
        item = self._heard.report(response, samples, now_ns)
        if item is not None:
            self._refined.append(item)

    def go_by(self, path: Path, now_ns: int) -> None:
        """The path to the ear is now this: heard goes by it where the client does not report."""
        self._refined += self._heard.go_by(path, now_ns)

    def written(self, response: str, samples: int) -> None:
        """No more than `samples` of `response`, which was cut, have left."""
        item = self._heard.written(response, samples)
        if item is not None:
            self._refined.append(item)

    def truncate(self, item: str, samples: int, now_ns: int) -> Cut | None:
        """The client has stopped playing a reply, which is over, at `samples`. None where nothing is known of it."""
        return self._heard.truncate(item, samples, now_ns)

    def cut_off(self, now_ns: int, response: str | None = None, *, gone: bool = False) -> list[tuple[str, Cut]]:
        """The caller interrupts, or is `gone`. Of replies that are over and of which they had yet to hear the end (of
        `response`, where one is named): their items, and what history has of each now."""
        return self._heard.stop(now_ns, response, gone=gone)

    # ---- what is known -----------------------------------------------------------------------------

    def take_refined(self) -> list[str]:
        """Items of replies that were cut and of which more is known since the last call: `cut_of` tells."""
        refined, self._refined = self._refined, []
        return refined

    def cut_of(self, item: str) -> Cut | None:
        """What history has of a reply, as far as is known now; None where that is not known any more."""
        return self._heard.cut_of(item)

    def sent_of(self, response: str, now_ns: int) -> int | None:
        """How much of the sound of `response` went out; None where that is not known, or not any more."""
        is_known = response in self._playout.open_responses()
        return self._playout.view(response, now_ns).sent if is_known else None

    def reported_of(self, response: str) -> int:
        """How much of `response` its caller has heard, by all that its client has reported."""
        return self._playout.reported(response)

    def rate_of(self, response: str) -> int:
        """Of the sound of `response`, of which `sent_of` is known."""
        return self._playout.rate_of(response)
