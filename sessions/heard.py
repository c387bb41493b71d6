"""What was heard of the last replies, and where the history of each ends.

Theory of operation
    A reply that is over keeps its ledger and its words here for a while: reports of what its caller heard come late,
    the words of its last clause may, and a client may say only afterwards where it stopped playing. The *cut* is where
    history ends in a reply that was not heard to its end: no more than what was sent, no less than what was heard.

    Where the peer throws away what it has not played yet, the cut is what was heard: as it reports, else as the pacing
    lets us estimate. Where it cannot, as with packets on their way, or does not, as when a reply fails, what was sent
    will be heard: all of it, or where the peer has fallen silent what it got before. What has arrived is told later.
    What a client could throw away and plays on may still be interrupted. Who is gone hears no more.

    A client that is told to stop throws away what it has not played also where we believe that it has played all. So
    from then on its reports put right that a reply was heard to its end, as they do where an estimate has cut it.

    Each cut has bounds, *least* and *most*, between which the truth lies. They close as more becomes known.

Rules
* least <= cut <= most <= sent; the error of a cut is its distance from the farther bound.
* A report moves a cut forward, in whichever order it and the end of the reply come, and one that was estimated either
  way, however long ago that was: nobody but its client can know that it stood still. Nothing but the client's own
  `truncate` moves back what was reported. That is its last word: no report moves the cut after it.
* A reply that was said to its end, and heard to its end after all, is whole again.
* Words are whole or not heard; the one that the cut fell into is named apart.
* Of a reply that broke off with its gateway, the words behind the cut may have been heard, until its client says how
  far it was. Of words without a place in the sound that stays unknown.
* The last `REPLIES_MAX` replies are known. Of others, a truncation is by the share of their sound.
* Sound outside the conversation is no part of its history, and is not interrupted: it counts as heard when it is over.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from media.chunk import samples_to_ms
from media.heard_estimate import Path
from media.playout import Basis, LedgerView, Playout, Reports
from sessions.items import Item, ItemStatus
from sessions.reply import Reply, Unsure
from sessions.settings import OUTPUT_RATE

REPLIES_MAX = 8  # a client corrects what it has just heard


@dataclass(frozen=True, slots=True)
class Cut:
    """History ends after `samples`, at `sample_rate`, of a reply: `text` are the words that were whole by then, `word`
    is the one that it fell into. `basis`: how that is known; the truth is no further from it than `error_samples`.
    `unsure`: where it broke off with its gateway, what else may have been heard.
    `whole`: the reply was said to its end, and is no more cut than that; `status` is that of its item."""

    samples: int
    text: str
    word: str = ""
    basis: Basis = "estimated"
    error_samples: int = 0
    sample_rate: int = OUTPUT_RATE
    whole: bool = False
    status: ItemStatus = "incomplete"
    unsure: Unsure | None = None

    @property
    def possibly_heard(self) -> str:
        return self.unsure.beyond(self.samples) if self.unsure else ""

    @property
    def ms(self) -> int:
        """Whole ms of the reply up to there."""
        return samples_to_ms(self.samples, self.sample_rate)

    def applied_to(self, item: Item) -> Item:
        """`item`, of which so much is history."""
        whole = Item(
            item.id,
            item.role,
            self.text,
            item.spoken,
            status=self.status,
            audio_samples=item.audio_samples,
            sample_rate=self.sample_rate,
            filler=item.filler,
        )
        if self.whole:
            return whole
        return replace(
            whole,
            cut=True,
            heard_samples=self.samples,
            heard_basis=self.basis,
            cut_word=self.word,
            heard_error_samples=self.error_samples,
            broke_off=item.broke_off,
            unsure=self.unsure,
        )


@dataclass(slots=True)
class _Reply:
    """`whole`: all of it was said. `plays_on`: what was sent of it is not taken back at its end. `truncated`: its
    client has said where history ends."""

    response: str
    reply: Reply
    sent: int
    whole: bool
    plays_on: bool
    basis: Basis
    cut: int
    least: int
    most: int
    unsure: Unsure | None = None
    truncated: bool = False

    @property
    def is_cut(self) -> bool:
        return not self.whole or self.cut < self.sent

    def cut_at(self, samples: int, basis: Basis, *, least: int, most: int) -> None:
        self.cut, self.basis = samples, basis
        self.least, self.most = min(least, samples), max(most, samples)

    def has_had(self, samples: int, basis: Basis | None = None) -> bool:
        """The ear has had `samples`, or will. True where that tells more of the cut; of another `basis` where it moves
        there."""
        if samples <= self.least:
            return False
        self.least = samples
        if samples >= self.cut:
            self.cut_at(samples, basis or self.basis, least=samples, most=self.most)
        return True

    def reported(self, samples: int, basis: Reports) -> bool:
        """The ear has had `samples`, by reports of this kind. True where that tells more of the cut. An estimate is put
        right, either way, unless what was sent plays on."""
        if self.truncated:
            return False
        was_cut = self.is_cut
        if self.unsure is not None:
            self.settle(samples if self.basis == "estimated" else max(samples, self.least))
            return True
        if self.basis != "estimated" or self.plays_on:
            return self.has_had(samples, basis) and (was_cut or self.is_cut)
        self.cut_at(samples, basis, least=samples, most=self.most)
        return was_cut or self.is_cut

    def settle(self, samples: int) -> None:
        """It broke off, and its client says that `samples` of it were heard."""
        assert self.unsure is not None, "only what is not known is settled"
        rest = self.unsure.rest if samples >= self.sent else ""
        self.unsure = Unsure(self.response, (), rest) if rest else None
        self.cut_at(samples, "acked", least=samples, most=samples)

    def as_cut(self) -> Cut:
        """Whether or not it was cut: what history has of it."""
        if not self.is_cut:
            status: ItemStatus = "incomplete" if self.reply.is_limited else "completed"
            text, rate = self.reply.text, self.reply.sample_rate
            return Cut(self.sent, text, "", self.basis, sample_rate=rate, whole=True, status=status)
        error = max(self.most - self.cut, self.cut - self.least)
        text, word = self.reply.cut_at(self.cut)
        word = "" if self.unsure else word  # it may have been heard whole
        return Cut(self.cut, text, word, self.basis, error, self.reply.sample_rate, unsure=self.unsure)


class Heard:
    """`playout` is the call's. `recalls`: what its client has not played yet can be taken back."""

    def __init__(self, playout: Playout, *, recalls: bool) -> None:
        self._playout = playout
        self._recalls = recalls
        self._replies: OrderedDict[str, _Reply] = OrderedDict()  # by their items
        self._wanted: dict[str, int] = {}

    # ---- replies end -----------------------------------------------------------------------------------

    def ended(
        self,
        response: str,
        item: str,
        reply: Reply,
        *,
        whole: bool,
        recalled: bool,
        now_ns: int,
        gone: bool = False,
        outside: bool = False,
    ) -> tuple[LedgerView, Cut]:
        """`response` has ended; `whole`: all of it was sent; `recalled`: its client throws away what it has not played,
        if it can; `gone`: nobody hears it any more; `outside`: it is not of the conversation. Gives its last ledger,
        and what history has of it."""
        view = self._playout.cut(response, now_ns)
        plays_on = whole or not (gone or (self._recalls and recalled))
        kept = _Reply(
            response, reply, view.sent, whole, plays_on, view.basis, cut=view.sent, least=view.heard, most=view.sent
        )
        wanted = self._wanted.pop(item, None)
        if wanted is not None:
            self._truncate(kept, wanted, now_ns)
        elif not whole and kept.plays_on:
            certain, arriving = self._playout.arrived(response, now_ns)
            kept.cut_at(arriving, view.basis, least=certain, most=view.sent)
        elif not whole:
            self._throw_away(kept, view, now_ns)
        kept.plays_on = kept.plays_on and not outside
        self._keep(item, kept)
        return view, kept.as_cut()

    def _throw_away(self, kept: _Reply, view: LedgerView, now_ns: int) -> None:
        """What the ear has not had of it by now it never will have."""
        kept.plays_on = False
        kept.cut_at(view.heard, view.basis, least=view.heard, most=view.heard + view.error_samples)
        self._playout.recall(kept.response, now_ns)

    def _truncate(self, kept: _Reply, samples: int, now_ns: int) -> None:
        kept.plays_on, kept.truncated, played = False, True, min(samples, kept.sent)
        if kept.unsure is not None:
            kept.settle(played)
        kept.cut_at(played, "acked", least=played, most=played)
        self._playout.recall(kept.response, now_ns)

    def broke_off(self, item: Item) -> None:
        """`item` is what is left of a reply that was being said when another gateway died."""
        unsure = item.unsure
        assert unsure is not None, "of all others nothing more becomes known here"
        reply, sent = Reply.of(unsure, item.sample_rate), max(item.audio_samples, item.heard_samples)
        self._playout.remember(unsure.response, item.sample_rate, sent=sent, heard=item.heard_samples)
        heard, basis = item.heard_samples, item.heard_basis
        self._keep(
            item.id,
            _Reply(unsure.response, reply, sent, False, False, basis, heard, least=heard, most=sent, unsure=unsure),
        )

    def _keep(self, item: str, reply: _Reply) -> None:
        self._replies[item] = reply
        while len(self._replies) > REPLIES_MAX:
            _, oldest = self._replies.popitem(last=False)
            self._playout.forget(oldest.response)

    # ---- more becomes known ------------------------------------------------------------------------------

    def cut_of(self, item: str) -> Cut | None:
        """What history has of a reply, cut or whole, as far as is known now; None where it is not known any more."""
        kept = self._replies.get(item)
        return None if kept is None else kept.as_cut()

    def report(self, response: str, samples: int, now_ns: int) -> str | None:
        """The ear has had `samples` of `response`. Gives the item of whose cut more is known now."""
        if response not in self._playout.open_responses():
            return None
        self._playout.acknowledge(response, samples, now_ns)
        item, kept = self._find(response)
        if kept is None:
            return None
        heard = min(self._playout.reported(response), kept.sent)
        return item if kept.reported(heard, self._playout.reports) else None

    def go_by(self, path: Path, now_ns: int) -> list[str]:
        """The path to the ear is now this. Gives the items of whose cuts more is known now."""
        self._playout.go_by(path, now_ns)
        playing = ((item, kept) for item, kept in self._replies.items() if kept.plays_on and kept.is_cut)
        return [item for item, kept in playing if kept.has_had(self._playout.arrived(kept.response, now_ns)[0])]

    def _find(self, response: str) -> tuple[str, _Reply | None]:
        return next(((name, one) for name, one in self._replies.items() if one.response == response), ("", None))

    def written(self, response: str, samples: int) -> str | None:
        """Of a reply that is over no more than `samples` have left: the rest was taken back in time. Gives the item of
        which less was heard than was thought."""
        item, kept = self._find(response)
        if kept is None or kept.sent <= samples:
            return None
        self._playout.take_back(response, samples)
        kept.sent, kept.whole = samples, False
        least, cut, most = (min(bound, samples) for bound in (kept.least, kept.cut, kept.most))
        kept.cut_at(cut, kept.basis, least=least, most=most)
        return item

    def want(self, item: str, samples: int) -> None:
        """The client has stopped playing a reply, of which it has yet to be said that it is over, at `samples`."""
        self._wanted[item] = samples

    def truncate(self, item: str, samples: int, now_ns: int) -> Cut | None:
        """The client has stopped playing a reply at `samples`. None where the reply is not known any more."""
        kept = self._replies.get(item)
        if kept is None:
            return None
        self._truncate(kept, samples, now_ns)
        return kept.as_cut()

    def forget(self, item: str) -> None:
        """The history has `item` no more, and another may take its id."""
        if item in self._replies:
            kept = self._replies.pop(item)
            self._replies[kept.response] = kept  # its sound goes on

    def unplayed(self, now_ns: int, response: str | None = None, *, gone: bool = False) -> list[str]:
        """The items of replies that are over, and of which the caller has yet to hear the end: short ones may be over
        before the one ahead of them was heard. That of `response` alone, where one is named. `gone`: the caller was
        hearing them, and does no more; also those that were cut and play on."""
        sounding = self._sounding(response, gone=gone)
        return [item for item, kept in sounding if self._playout.view(kept.response, now_ns).heard < kept.sent]

    def _sounding(self, response: str | None, *, gone: bool) -> list[tuple[str, _Reply]]:
        """Replies that are over and that their client plays to their end, unless it is told to stop."""
        if not (self._recalls or gone):
            return []
        replies = ((item, kept) for item, kept in self._replies.items() if response in (None, kept.response))
        return [(item, kept) for item, kept in replies if kept.plays_on]

    def last_words(self, now_ns: int) -> str:
        """The words of the replies that the caller has yet to hear the end of."""
        return " ".join(self._replies[item].reply.text for item in self.unplayed(now_ns))

    def stop(self, now_ns: int, response: str | None = None, *, gone: bool = False) -> list[tuple[str, Cut]]:
        """The caller interrupts, or is `gone`; that of `response` alone, where one is named. Gives the items of replies
        that are over and of which they had yet to hear the end, and what history has of each now."""
        stopped = []
        for item, kept in self._sounding(response, gone=gone):
            view = self._playout.view(kept.response, now_ns)
            if view.heard < kept.sent:
                self._throw_away(kept, view, now_ns)
                stopped.append((item, kept.as_cut()))
            else:  # as far as is known: what its client reports from now on says where it stopped
                kept.plays_on, kept.basis = False, view.basis
        return stopped


def shortened(item: Item, samples: int) -> Cut:
    """What may have been heard of a reply of which no word times are left: the share of the words that are left of it,
    rounded down, give or take one of them. What history has lost already does not come back."""
    covered = item.heard_samples if item.cut else item.audio_samples
    if samples >= covered:
        return _as_it_is(item, covered)
    words = item.text.split()
    whole = len(words) * samples // covered
    word = words[whole] if whole < len(words) else item.cut_word
    error = -(-covered // len(words)) if words else 0
    return Cut(samples, " ".join(words[:whole]), word, error_samples=error, sample_rate=item.sample_rate)


def _as_it_is(item: Item, covered: int) -> Cut:
    return Cut(
        covered,
        item.text,
        item.cut_word,
        item.heard_basis,
        item.heard_error_samples,
        item.sample_rate,
        whole=not item.cut,
        status=item.status,
        unsure=item.unsure,
    )
