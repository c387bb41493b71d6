"""History against the ear: what the store says of one reply, and what of it was really played.

Rules
* Errors are history less ear: what is above 0 was never heard, and history presumes that it was.
* A word was heard when all but 12 ms of it was (`loadtest.coded_ear`); history counts whole words alone, so a cut in
  the last 12 ms of a word is an error of -1.
* What breaks a promise is a *fault*, whatever its size: words out of order, twice, or with a gap; sound that came after
  the caller was told that its reply was over; more sound than history says was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.heard_error.line import Spoken
from benchmarks.heard_error.plan import CallPlan
from loadtest.coded_ear import EVIDENCE_SAMPLES, SHORTEST_SAMPLES, CodedEar, WordHeard
from media.chunk import ms_to_samples
from media.coded_tones import EAR_RATE, EDGE_SAMPLES, WORD
from media.fade import FADE_MS
from sessions.records import ItemRecord

# Two neighbouring pieces of a word may each be reported a little long (`media.coded_tones`).
REPEATED_MS_MAX = 3
# Of a word that follows another, and of one that is the first, so much may go unnoticed where it breaks off.
UNNOTICED_MS = (EVIDENCE_SAMPLES + EDGE_SAMPLES) * 1_000 / EAR_RATE
UNNOTICED_FIRST_MS = SHORTEST_SAMPLES * 1_000 / EAR_RATE
# What sounded last before a clear was thrown away by it: it ends there, or with the frame that it left whole.
NEAR_SAMPLES = ms_to_samples(50, EAR_RATE)
# The ear may take so much for the end of a word that is no more than like it; a frame that came too late is longer.
BEYOND_MS_MAX = UNNOTICED_FIRST_MS


@dataclass(frozen=True, slots=True)
class Finding:
    """Of one reply. `basis`: how the store says that it is known; empty where it has nothing of the reply. `heard`: the
    words with the samples of each that were not heard."""

    plan: CallPlan
    spoken: Spoken
    basis: str
    words_error: int
    ms_error: float
    faults: tuple[str, ...]
    heard: tuple[tuple[int, int], ...]

    @property
    def is_told(self) -> bool:
        """The client has said what was played, as far as it could before it was gone."""
        reports = self.plan.reports
        return reports == "acks" or (reports == "truncates" and self.spoken.cut.deed != "hang_up")

    @property
    def ms_unsure(self) -> float:
        """How much more may have been heard than the ear has made out: what fades out in a hold is soon too soft."""
        fade_ms = FADE_MS if self.spoken.cut.deed == "speak" else 0
        return fade_ms + (UNNOTICED_MS if self.heard else UNNOTICED_FIRST_MS)

    @property
    def presumes(self) -> bool:
        """History has a word that was not played."""
        return self.words_error > 0


def judge(plan: CallPlan, spoken: Spoken, item: ItemRecord | None, ear: CodedEar) -> Finding:
    """Compare what `ear` heard of the reply with its `item` in the store, None where there is none."""
    heard = ear.words_of(spoken.response)
    heard_ms = _samples_heard(spoken, heard, ear) * 1_000 / EAR_RATE
    said = [] if item is None else words_in(item.content)
    said_ms = 0 if item is None else item.audio_ms_cut if item.truncated else item.audio_ms_total
    faults = [*_faults_of_words(heard), *_faults_of_history(said)]
    end = spoken.cleared_sample
    if spoken.stale_samples or (end is not None and any(word.start_sample > end + EDGE_SAMPLES for word in heard)):
        faults.append("came after its end")
    if heard_ms > (0 if item is None else item.audio_ms_total) + BEYOND_MS_MAX:
        faults.append("more heard than sent")
    words = sum(word.whole for word in heard)
    basis = "" if item is None else item.heard_basis
    lost = tuple((word.word, word.lost_samples) for word in heard)
    return Finding(plan, spoken, basis, len(said) - words, said_ms - heard_ms, tuple(faults), lost)


def _samples_heard(spoken: Spoken, heard: Sequence[WordHeard], ear: CodedEar) -> int:
    """Of the response. Where its sound was thrown away, all that sounded from its last word on was of it, also where
    that is too short to be made out."""
    made_out = ear.samples_of(spoken.response)
    if spoken.cleared_sample is None:
        return made_out
    if heard:
        last = heard[-1]
        before, since = (last.word + last.whole) * WORD, last.start_sample + last.whole * WORD
    else:
        before, since = 0, ear.sound_begin(spoken.cleared_sample)
        if ear.sound_end(since) < spoken.cleared_sample - NEAR_SAMPLES:
            return made_out
    return max(made_out, before + min(ear.sound_end(since), spoken.cleared_sample) - since)


def words_in(content: str) -> list[int]:
    """ "w3," is word 3."""
    return [int(word.strip("w,.")) for word in content.split()]


def _faults_of_words(heard: Sequence[WordHeard]) -> list[str]:
    faults = []
    numbers = [word.word for word in heard]
    if numbers != sorted(numbers):
        faults.append("heard out of order")
    # Only the last may be broken off, and where it is the first, it may be too short to be made out.
    if sorted(numbers) != list(range(len(numbers))) or not all(word.whole for word in heard[:-1]):
        faults.append("heard with a gap")
    if any(word.repeated_samples > ms_to_samples(REPEATED_MS_MAX, EAR_RATE) for word in heard):
        faults.append("heard twice")
    return faults


def _faults_of_history(said: Sequence[int]) -> list[str]:
    return [] if list(said) == list(range(len(said))) else ["history out of order"]
