"""What a call says of its caller's ear, beside that ear.

Rules that are checked
* At every frame, and whenever history changes: no more is reported to be heard than was, and what is estimated errs by
  no more than what nobody is told of: jitter, a jitter buffer longer than usual, what waits at the gateway, and for
  whom the connection is lost without a word the time until that shows.
* A cut lies between its bounds, and these within what was sent; it moves back only where a report puts an estimate
  right, where its client says where it stopped, or where something was taken back unsent.
* At the end: where a client has said where it stopped, history ends there, and no word of it was not played. Where what
  was sent could not be taken back, or was not, all of it was played.

Of a client that lies nothing is checked.
"""

from __future__ import annotations

from collections import Counter

from media.chunk import ms_to_samples
from media.heard_estimate import SILENCE_NS_MAX, WEBRTC_LATENCY, WEBSOCKET_LATENCY
from media.playout import LedgerView
from sessions.conversation import Conversation
from sessions.items import Item
from sessions.settings import OUTPUT_RATE
from sessions.sounding import FRAME_MS
from tests.sim.clock import MS, Clock
from tests.sim.player import Player

WAITING_FRAMES_MAX = 2
LATE_PACKETS_MAX = 12  # those that wait, and those that a gateway which stood still catches up with
TRUNCATED_SAMPLES_MAX = OUTPUT_RATE // 1_000  # a client counts in whole ms


class HeardWatch:
    def __init__(self, core: Conversation, clock: Clock, player: Player, counts: Counter[str]) -> None:
        self._core = core
        self._clock = clock
        self._player = player
        self._counts = counts
        headset = player.headset
        latency = WEBRTC_LATENCY if headset.rtp else WEBSOCKET_LATENCY
        waiting_ms = (LATE_PACKETS_MAX if headset.rtp else WAITING_FRAMES_MAX) * FRAME_MS
        # Reports that come while the buffer runs low show a way that is shorter by as much.
        told_ms = 0 if headset.reports == "acks" else latency.ns_max // MS
        untold_ms = headset.jitter_ms + max(0, headset.buffer_ms - told_ms)
        self._untold_samples = ms_to_samples(waiting_ms + untold_ms, OUTPUT_RATE)
        self._playing_on: set[str] = set()  # items of which all that was sent will be heard, as history has it

    @property
    def is_silent(self) -> bool:
        """Nothing comes of its client, as its gateway sees it: what was believed to reach it may not have."""
        return self._core.speaking._playout._path.silent_ns is not None

    def _knows(self, response: str) -> bool:
        """Something can be said of what was heard of it."""
        return self._player.headset.reports != "lies" and self._player.ear.knows(response)

    def sounds(self, response: str, ledger: LedgerView) -> None:
        """A frame of `response` is sent, of which the ledger says this."""
        if self._knows(response):
            most = ledger.heard + ledger.error_samples
            self._check(response, ledger.heard, most, acked=ledger.basis == "acked")

    def _check(self, response: str, heard: int, most: int, *, acked: bool) -> None:
        player = self._player
        truth = player.ear.heard(response, self._clock.now_ns)
        untold = 0 if acked else self._untold_samples
        is_seen = not player.headset.rtp and self.is_silent
        if not acked and player.gone_ns is not None and not is_seen:
            untold += ms_to_samples(SILENCE_NS_MAX // MS, OUTPUT_RATE)
        assert heard <= truth + untold, f"of {response} {heard} are heard, and the ear has had {truth}"
        assert truth <= most + self._late_samples or player.is_ahead, (
            f"of {response} {truth} were heard, of at most {most}"
        )

    @property
    def _late_samples(self) -> int:
        """A report that waited for a gateway which stood still, or on its way, is older than it can know; times are
        told in whole ms."""
        late_ms = self._player.report_late_ns // MS + self._player.headset.jitter_ms + 1
        return ms_to_samples(late_ms, OUTPUT_RATE)

    def _most_stopped(self, most: int, sent: int) -> int:
        """Of a reply that was stopped when at most so much was heard: a stop takes its time to the client, and reaches
        one that does not read whenever it reads again."""
        headset = self._player.headset
        way = ms_to_samples(headset.down_ms + headset.jitter_ms, OUTPUT_RATE)
        return sent if self._player.has_stalled else most + way

    # ---- history -----------------------------------------------------------------------------------

    def saved(self, item: Item, known: Item | None) -> None:
        """What history has of a reply is now `item`."""
        kept = self._core.speaking._heard._replies.get(item.id)
        if kept is None or not kept.is_cut:
            return
        may_fall = kept.sent < item.audio_samples or item.id in self._playing_on
        self._playing_on.discard(item.id)
        if kept.plays_on:
            self._playing_on.add(item.id)
        if not self._knows(kept.response):
            return
        assert kept.least <= kept.cut <= kept.most <= kept.sent, "a cut lies between its bounds"
        assert item.heard_samples == kept.cut
        if not kept.plays_on:
            most = self._most_stopped(kept.most, kept.sent)
            self._check(kept.response, kept.cut, most, acked=kept.basis == "acked")
        if known is not None and known.cut:
            self._check_moved(known, item, may_fall=may_fall)

    def _check_moved(self, known: Item, item: Item, *, may_fall: bool) -> None:
        is_put_right = (known.heard_basis, item.heard_basis) == ("estimated", "acked")
        falls = known.heard_samples - item.heard_samples
        self._counts["estimates put right"] += is_put_right and falls > 0
        assert falls < TRUNCATED_SAMPLES_MAX or is_put_right or may_fall, "what was heard does not move back"

    def at_rest(self) -> None:
        """All that was sent has been played, and all reports have come."""
        if self._player.gone_ns is not None:
            return
        for item in self._core.items:
            response = self._player.response_of(item.id)
            if item.role == "assistant" and item.spoken and response is not None and self._knows(response):
                self._check_end(item, response)

    def _check_end(self, item: Item, response: str) -> None:
        player = self._player
        truth = player.ear.heard(response, self._clock.now_ns)
        claim = item.heard_samples if item.cut else item.audio_samples
        is_told = player.told.get(response) == truth and item.id not in self._playing_on
        if (is_told or player.headset.rtp) and not player.has_stalled:  # else something may never be read
            self._counts["histories told" if item.cut else "replies told whole"] += 1
            assert abs(claim - truth) <= TRUNCATED_SAMPLES_MAX, f"history has {claim} of {response}, the ear {truth}"
            return
        self._counts["histories estimated" if item.cut else "replies presumed whole"] += 1
        assert claim <= truth + self._untold_samples, f"history has {claim} of {response}, the ear {truth}"
        most = self._most_stopped(claim + item.heard_error_samples, item.audio_samples) + self._late_samples
        assert truth <= most, f"history has {claim} of {response}, the ear {truth}, of at most {most}"
