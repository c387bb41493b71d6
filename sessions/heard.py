"""What was heard of the last replies, and where the history of each ends.

Theory of operation
    A reply that is over keeps its ledger and its words here for a while: reports of what its caller heard come late,
    the words of its last clause may, and a client may say only afterwards where it stopped playing. The *cut* is where
    history ends in a reply that was not heard to its end: no more than what was sent, no less than what was heard.

    Where the peer throws away what it has not played yet, the cut is what was heard: as it reports, else as the pacing
    lets us estimate. Where it cannot, as with packets on their way, or does not, as when a reply fails, all that was
    sent will be heard, unless the peer is gone.

Rules
* A report moves a cut forward, in whichever order it and the end of the reply come, and one that was estimated either
  way; nothing but the client's own `truncate` moves back what was reported.
* Words are whole or not heard; the one that the cut fell into is named apart.
* The last `REPLIES_MAX` replies are known. Of others, a truncation is by the share of their sound.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from media.playout import Basis, LedgerView, Playout
from sessions.items import Item
from sessions.reply import Reply

REPLIES_MAX = 8  # a client corrects what it has just heard


@dataclass(frozen=True, slots=True)
class Cut:
    """History ends after `samples` of a reply: `text` are the words that were whole by then, `word` is the one that it
    fell into. `basis`: how that is known."""

    samples: int
    text: str
    word: str = ""
    basis: Basis = "estimated"

    def applied_to(self, item: Item) -> Item:
        """`item`, of which no more is history."""
        return Item(
            item.id,
            item.role,
            self.text,
            item.spoken,
            status="incomplete",
            audio_samples=item.audio_samples,
            cut=True,
            heard_samples=self.samples,
            heard_basis=self.basis,
            cut_word=self.word,
        )


@dataclass(slots=True)
class _Reply:
    response: str
    reply: Reply
    sent: int
    cut: int | None  # None: it was said to its end
    basis: Basis

    def at(self, samples: int) -> Cut:
        return Cut(samples, *self.reply.cut_at(samples), self.basis)


class Heard:
    """`playout` is the call's. `recalls`: what its client has not played yet can be taken back."""

    def __init__(self, playout: Playout, *, recalls: bool) -> None:
        self._playout = playout
        self._recalls = recalls
        self._replies: OrderedDict[str, _Reply] = OrderedDict()  # by their items
        self._wanted: dict[str, int] = {}

    # ---- replies end -----------------------------------------------------------------------------------

    def ended(
        self, response: str, item: str, reply: Reply, *, whole: bool, recalled: bool, now_ns: int, gone: bool = False
    ) -> tuple[LedgerView, Cut]:
        """`response` has ended; `whole`: all of it was sent; `recalled`: its client throws away what it has not played,
        if it can; `gone`: nobody hears it any more. Gives its last ledger, and what history has of it."""
        view = self._playout.cut(response, now_ns)
        wanted = self._wanted.pop(item, None)
        heard = view.heard if gone or (self._recalls and recalled) else view.sent
        kept = _Reply(response, reply, view.sent, None if whole else heard, view.basis)
        if wanted is not None:
            kept.cut, kept.basis = min(wanted, view.sent), "acked"
        self._replies[item] = kept
        while len(self._replies) > REPLIES_MAX:
            _, oldest = self._replies.popitem(last=False)
            self._playout.forget(oldest.response)
        return view, self._cut_of(kept)

    def _cut_of(self, kept: _Reply) -> Cut:
        return Cut(kept.sent, kept.reply.text, "", kept.basis) if kept.cut is None else kept.at(kept.cut)

    # ---- more becomes known ------------------------------------------------------------------------------

    def cut_of(self, item: str) -> Cut | None:
        """What history has of a reply that was cut, as far as is known now."""
        kept = self._replies.get(item)
        return None if kept is None or kept.cut is None else self._cut_of(kept)

    def report(self, response: str, samples: int, now_ns: int) -> str | None:
        """The ear has had `samples` of `response`. Gives the item of which more was heard than was thought, or less."""
        if response not in self._playout.open_responses():
            return None
        self._playout.acknowledge(response, samples, now_ns)
        item, kept = self._find(response)
        if kept is None or kept.cut is None or not self._recalls:
            return None
        heard = min(samples, kept.sent)
        if kept.basis == "acked" and heard <= kept.cut:
            return None
        kept.cut, kept.basis = heard, "acked"
        return item

    def _find(self, response: str) -> tuple[str, _Reply | None]:
        return next(((name, one) for name, one in self._replies.items() if one.response == response), ("", None))

    def written(self, response: str, samples: int) -> str | None:
        """Of a reply that was cut no more than `samples` have left: the rest was taken back in time. Gives the item of
        which less was heard than was thought."""
        item, kept = self._find(response)
        if kept is None or kept.cut is None or kept.sent <= samples:
            return None
        kept.sent, kept.cut = samples, min(kept.cut, samples)
        return item

    def want(self, item: str, samples: int) -> None:
        """The client has stopped playing a reply, of which it has yet to be said that it is over, at `samples`."""
        self._wanted[item] = samples

    def truncate(self, item: str, samples: int) -> Cut | None:
        """The client has stopped playing a reply at `samples`. None where the reply is not known any more."""
        kept = self._replies.get(item)
        if kept is None:
            return None
        kept.cut, kept.basis = min(samples, kept.sent), "acked"
        return self._cut_of(kept)

    def unplayed(self, now_ns: int, response: str | None = None, *, gone: bool = False) -> str | None:
        """The item of a reply that is over, and that the caller is still hearing the end of: that of `response`, where
        one is named. `gone`: the caller was hearing it, and does no more; also of one that was cut and plays on."""
        if not (self._recalls or gone):
            return None
        for item, kept in self._replies.items():
            plays_on = kept.cut is None or (gone and kept.cut == kept.sent)
            is_meant = plays_on and response in (None, kept.response)
            if is_meant and self._playout.view(kept.response, now_ns).heard < kept.sent:
                return item
        return None

    def last_words(self, now_ns: int) -> str:
        """The words of the reply that the caller still hears the end of."""
        item = self.unplayed(now_ns)
        return self._replies[item].reply.text if item else ""

    def cut_off(self, item: str, now_ns: int) -> Cut:
        """The caller interrupts a reply that is over, and that they were still hearing."""
        kept = self._replies[item]
        view = self._playout.view(kept.response, now_ns)
        kept.cut, kept.basis = view.heard, view.basis
        return self._cut_of(kept)


def shortened(item: Item, samples: int) -> Cut:
    """What may have been heard of a reply of which no word times are left: its share of the sound, rounded down."""
    words = item.text.split()
    whole = len(words) * samples // item.audio_samples if item.audio_samples else 0
    return Cut(samples, " ".join(words[:whole]), words[whole] if whole < len(words) else "")
