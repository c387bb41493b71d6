"""The way in: what reaches the encoder, in which order, and how the client is made to wait.

The gate, the conversation and the thread of the VAD are the real ones; the model hears what is loud.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from duplex import listening
from duplex.asked_streams import UNOPENED_FEEDS_MAX
from duplex.encoder_feed import ENCODER_CREDIT_SAMPLES, FEED_SAMPLES_MAX
from duplex.listening import RING_SECONDS, Listening, ListeningPorts, detector_settings
from duplex.tasks import stop_task
from duplex.turn_sound_service import TurnSoundService
from duplex.vad_service import VadService, Window
from media.end_of_turn import EndOfTurnSettings
from media.speech_gate import WINDOW_SAMPLES
from media.turn_events import Saying
from media.turn_settings import TurnDetectorSettings
from sessions import effects as do
from sessions.conversation import Conversation
from sessions.events import Event, SpeechStarted, TurnHeld, TurnResumed
from sessions.planner import Identity, ReplyDefaults
from sessions.settings import INPUT_RATE, OUTPUT_RATE, SessionSettings, TurnDetection
from stages.contracts import AudioIn, EndOfTurn, Item, Pause, SpeechResumed, Tag

EPOCH = 1 << 20
SECOND_NS = 1_000_000_000
S_MAX = 30  # a sample at a time takes long on a busy machine


class Loudness:
    """Tells `judged` of each batch."""

    def __init__(self, judged: Callable[[], None]) -> None:
        self._judged = judged

    def probabilities(self, batch: Sequence[Window]) -> list[float]:
        self._judged()
        return [1.0 if float(np.abs(window).max()) > 0.05 else 0.0 for _, window in batch]


class Ears:
    """A call's way in. The encoder gives its credit back at once, unless it is `busy`."""

    def __init__(
        self,
        settings: SessionSettings | None = None,
        conversation: type[Conversation] = Conversation,
        turn_sound: TurnSoundService | None = None,
        model: type[Loudness] = Loudness,
    ) -> None:
        self._ids: Counter[str] = Counter()
        identity = Identity("sess_1", EPOCH, self._new_id)
        self.talk = conversation(identity, settings or SessionSettings(), ReplyDefaults("Hi.", 10), transport_lead_ms=0)
        self.judged = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.vad = VadService(model(self._tell_judged))
        self.listening = Listening(
            self.talk, self.vad, ListeningPorts(self.carry_out, self._feed), turn_sound=turn_sound
        )
        self.effects: list[do.Effect] = []
        self.begun = asyncio.Event()  # a turn has
        self.fed: list[tuple[Tag, Item]] = []
        self.busy = False

    def _tell_judged(self) -> None:
        self._loop.call_soon_threadsafe(self.judged.set)

    def _new_id(self, prefix: str) -> str:
        self._ids[prefix] += 1
        return f"{prefix}_{self._ids[prefix]}"

    def carry_out(self, effects: Sequence[do.Effect]) -> None:
        for effect in effects:
            self.effects.append(effect)
            match effect:
                case do.FeedStream("encoder", tag, item):
                    self.listening.tell_encoder(tag, item)
                case do.HearFrom(tag, sample, until):
                    self.begun.set()
                    self.listening.hear_from(tag, sample, until)
                case do.StopHearing(tag, until):
                    self.listening.stop_hearing(tag, until)
                case do.ResetGate():
                    self.listening.reset_gate()

    def _feed(self, tag: Tag, item: Item, units: int) -> None:
        assert units == (len(item.pcm) // 2 if isinstance(item, AudioIn) else 0)
        self.fed.append((tag, item))
        if units and not self.busy:
            asyncio.get_running_loop().call_soon(self.listening.credit_returned, tag, units)

    def update(self, settings: SessionSettings) -> None:
        self.carry_out(self.talk.update(settings, self.listening.newest, 0))
        self.listening.settings_changed()

    async def until_full(self) -> None:
        """Until all of the ring is kept for an encoder that gives no credit back."""
        while self.listening.newest < (RING_SECONDS - 1) * INPUT_RATE:
            await self.judged.wait()
            self.judged.clear()
        for _ in range(10):
            await asyncio.sleep(0)

    def heard(self, turn: int = 1) -> list[AudioIn]:
        return [item for tag, item in self.fed if isinstance(item, AudioIn) and tag.turn == turn]

    def told(self, turn: int = 1) -> list[Item]:
        """Everything that is no audio."""
        return [item for tag, item in self.fed if not isinstance(item, AudioIn) and tag.turn == turn]

    def events(self) -> list[Event]:
        """What the client is told."""
        return [effect.event for effect in self.effects if isinstance(effect, do.Tell)]

    def ends(self) -> list[EndOfTurn]:
        return [item for _, item in self.fed if isinstance(item, EndOfTurn)]

    def span(self, turn: int = 1) -> tuple[int, int]:
        """First and last sample that the encoder got of a turn; each once, none missing between them."""
        pieces = self.heard(turn)
        ends = [piece.start_sample + len(piece.pcm) // 2 for piece in pieces]
        assert [piece.start_sample for piece in pieces[1:]] == ends[:-1]
        return pieces[0].start_sample, ends[-1]

    def sound(self, turn: int = 1) -> bytes:
        return b"".join(piece.pcm for piece in self.heard(turn))


def play(scenario: Callable[[Ears], Coroutine[None, None, object]], ears: Callable[[], Ears] = Ears) -> Ears:
    """Run `scenario` over a way in that lives as long as it."""

    async def run() -> Ears:
        made = ears()
        running = asyncio.create_task(made.vad.run())
        try:
            async with asyncio.timeout(S_MAX):
                await scenario(made)
                await asyncio.sleep(0)  # credit that comes back
        finally:
            await stop_task(running)
        return made

    return asyncio.run(run())


def tone(ms: int, rate: int = OUTPUT_RATE) -> bytes:
    clock = np.arange(ms * rate // 1000) / rate
    pcm: bytes = (np.sin(2 * np.pi * 300 * clock) * 0.3 * 32767).astype("<i2").tobytes()
    return pcm


def silence(ms: int) -> bytes:
    return bytes(2 * (ms * OUTPUT_RATE // 1000))


def at(ms: int) -> int:
    """The 16 kHz sample of a moment."""
    return ms * INPUT_RATE // 1000


UTTERANCE = silence(1_000) + tone(600) + silence(700)


async def say(ears: Ears, pcm: bytes = UTTERANCE) -> None:
    await ears.listening.hear(pcm)


def test_a_turn_reaches_the_encoder_from_before_its_onset_to_its_end() -> None:
    ears = play(say)
    first, last = ears.span()
    assert at(1_000) - at(300) - 512 <= first <= at(1_000) - at(200), "at least 200 ms before the first sound"
    assert last >= at(1_600)
    (end,) = [item for item in ears.told() if isinstance(item, EndOfTurn)]
    assert abs(end.sample - at(1_600)) <= 512


def test_the_sound_that_reaches_the_encoder_is_what_was_said() -> None:
    ears = play(say)
    first, _ = ears.span()
    got = np.frombuffer(ears.sound(), "<i2").astype(float)[at(1_020) - first : at(1_580) - first]
    said = np.frombuffer(tone(600, INPUT_RATE), "<i2").astype(float)[at(20) : at(580)]
    assert np.corrcoef(got, said)[0, 1] > 0.9999


@pytest.mark.parametrize("size", [1, 2, 479, 960, 4_801, 100_000])
def test_the_size_of_messages_changes_nothing(size: int) -> None:
    pcm = silence(50) + tone(100) + silence(550)

    async def in_pieces(ears: Ears) -> None:
        for start in range(0, len(pcm), size):
            await ears.listening.hear(pcm[start : start + size])

    ears = play(in_pieces)
    whole = play(lambda other: other.listening.hear(pcm))
    assert (ears.told(), ears.span(), ears.sound()) == (whole.told(), whole.span(), whole.sound())
    assert ears.listening.received_samples == whole.listening.received_samples == len(pcm) // 2


def test_half_a_sample_waits_for_its_other_half() -> None:
    async def scenario(ears: Ears) -> None:
        await ears.listening.hear(b"\x01")
        assert ears.listening.received_samples == 0
        await ears.listening.hear(b"")
        await ears.listening.hear(b"\x02\x03")
        assert ears.listening.received_samples == 1

    play(scenario)


def test_small_messages_become_pieces_of_a_sensible_size() -> None:
    async def scenario(ears: Ears) -> None:
        ears.busy = True
        pcm = silence(300) + tone(3_000)
        for start in range(0, len(pcm), 48):
            await ears.listening.hear(pcm[start : start + 48])

    ears = play(scenario)
    sizes = {len(piece.pcm) // 2 for piece in ears.heard()}
    assert min(sizes) >= WINDOW_SAMPLES
    assert max(sizes) <= FEED_SAMPLES_MAX
    assert len(ears.heard()) < UNOPENED_FEEDS_MAX, "so that all of the credit may wait for `Opened`"


def test_no_more_is_fed_than_the_encoder_has_given_credit_for() -> None:
    async def scenario(ears: Ears) -> None:
        ears.busy = True
        await ears.listening.hear(silence(500) + tone(5_000))
        tag = ears.fed[0][0]
        first, last = ears.span()
        assert last - first <= ENCODER_CREDIT_SAMPLES
        assert last - first > ENCODER_CREDIT_SAMPLES - FEED_SAMPLES_MAX
        ears.listening.credit_returned(tag, FEED_SAMPLES_MAX)
        assert ears.span()[1] == last + FEED_SAMPLES_MAX

    play(scenario)


def test_the_end_of_a_turn_waits_for_its_sound() -> None:
    async def scenario(ears: Ears) -> None:
        ears.busy = True
        await ears.listening.hear(silence(500) + tone(3_000) + silence(1_000))
        assert [effect for effect in ears.effects if isinstance(effect, do.StopHearing)], "the turn has ended"
        assert ears.told() == []
        tag = ears.fed[0][0]
        while not ears.told():
            ears.listening.credit_returned(tag, FEED_SAMPLES_MAX)
        assert isinstance(ears.fed[-1][1], EndOfTurn)
        assert ears.span()[1] >= at(3_500)

    play(scenario)


def test_a_pause_is_told_before_what_follows_it() -> None:
    ears = play(lambda made: made.listening.hear(silence(300) + tone(400) + silence(200) + tone(400) + silence(700)))
    assert [type(item) for item in ears.told()] == [Pause, SpeechResumed, Pause, EndOfTurn]


def test_a_flood_waits_until_the_encoder_has_heard() -> None:
    async def scenario(ears: Ears) -> None:
        ears.busy = True
        flood = asyncio.create_task(ears.listening.hear(silence(500) + tone(RING_SECONDS * 1_000 + 5_000)))
        await ears.until_full()
        assert not flood.done()
        kept = ears.listening.newest
        ears.busy = False
        ears.listening.credit_returned(ears.fed[0][0], ENCODER_CREDIT_SAMPLES // 2)
        await flood
        assert ears.listening.newest > kept
        assert ears.span()[1] <= ears.listening.newest

    play(scenario)


def test_a_stream_that_is_gone_holds_nobody_up() -> None:
    async def scenario(ears: Ears) -> None:
        ears.busy = True
        flood = asyncio.create_task(ears.listening.hear(silence(500) + tone(RING_SECONDS * 1_000 + 5_000)))
        await ears.until_full()
        ears.listening.drop(ears.fed[0][0])
        await flood

    play(scenario)


def test_credit_of_a_stream_that_is_gone_is_no_matter() -> None:
    async def scenario(ears: Ears) -> None:
        ears.listening.credit_returned(Tag("sess_1", EPOCH, 9), 100)
        ears.listening.stop_hearing(Tag("sess_1", EPOCH, 9))
        ears.listening.drop(Tag("sess_1", EPOCH, 9))

    play(scenario)


def test_a_new_encoder_hears_a_turn_again_from_its_beginning() -> None:
    async def scenario(ears: Ears) -> None:
        await ears.listening.hear(silence(500) + tone(600))
        tag, first = ears.fed[0][0], ears.span()[0]
        ears.fed.clear()
        ears.listening.drop(tag)
        ears.carry_out(ears.talk.lost(tag, "encoder", 0))
        await ears.listening.hear(tone(200) + silence(700))
        assert ears.span()[0] == first
        assert isinstance(ears.told()[-1], EndOfTurn)

    play(scenario)


def test_what_the_ring_has_lost_cannot_be_heard_again() -> None:
    async def scenario(ears: Ears) -> None:
        await ears.listening.hear(silence(RING_SECONDS * 1_000 + 2_000))
        tag = Tag("sess_1", EPOCH, 1)
        ears.listening.hear_from(tag, 0, at(3_000))
        assert ears.span() == (ears.listening.newest - RING_SECONDS * INPUT_RATE, at(3_000))

    play(scenario)


def manual() -> Ears:
    return Ears(SessionSettings(turn_detection=None))


def test_without_detection_nothing_is_a_turn_until_it_is_committed() -> None:
    async def scenario(ears: Ears) -> None:
        await ears.listening.hear(UTTERANCE)
        assert ears.events() == []
        assert ears.told() == []
        assert ears.listening.uncommitted_from == 0
        start, end = ears.listening.uncommitted_from, ears.listening.newest
        ears.carry_out(ears.talk.commit_input(start, end, 0))
        await asyncio.sleep(0)
        assert ears.span() == (0, end)
        assert ears.told() == [EndOfTurn(end)]
        assert ears.listening.uncommitted_from == end

    play(scenario, manual)


def test_a_commit_in_the_middle_of_speech_ends_the_turn_there() -> None:
    async def scenario(ears: Ears) -> None:
        await ears.listening.hear(silence(500) + tone(600))
        end = ears.listening.newest
        ears.carry_out(ears.talk.commit_input(ears.listening.uncommitted_from, end, 0))
        await ears.listening.hear(tone(300) + silence(700))
        assert ears.span(1)[1] == end
        assert ears.told(1) == [EndOfTurn(end)]
        following = ears.fed[-1][0].turn
        assert following > 1
        assert ears.span(following)[0] == end, "what goes on is a turn of its own"

    play(scenario)


def test_what_a_turn_has_taken_is_committed_already() -> None:
    async def scenario(ears: Ears) -> None:
        await ears.listening.hear(UTTERANCE)
        assert ears.listening.uncommitted_from > at(1_600)

    play(scenario)


def test_input_that_was_cleared_belongs_to_no_turn() -> None:
    async def scenario(ears: Ears) -> None:
        await ears.listening.hear(silence(500) + tone(600))
        ears.carry_out(ears.talk.clear_input(0))
        assert ears.listening.uncommitted_from == ears.listening.newest
        cleared = ears.listening.newest
        await ears.listening.hear(tone(600) + silence(1_500))
        assert ears.told(1) == []
        assert ears.span(ears.fed[-1][0].turn)[0] == cleared, "nor is it in the padding of the next"

    play(scenario)


def test_the_padding_of_a_turn_has_no_word_of_the_one_before() -> None:
    async def scenario(ears: Ears) -> None:
        await ears.listening.hear(silence(300) + tone(600) + silence(600) + tone(600) + silence(700))
        (first, second) = ears.ends()
        assert ears.span(ears.fed[-1][0].turn) == (first.sample, ears.listening.uncommitted_from)
        assert second.sample > first.sample

    play(scenario, lambda: Ears(SessionSettings(turn_detection=TurnDetection(prefix_padding_ms=2_000))))


def test_detection_can_be_changed_and_switched_off_and_on() -> None:
    async def scenario(ears: Ears) -> None:
        long = SessionSettings(turn_detection=TurnDetection(silence_duration_ms=2_000))
        ears.update(long)
        await ears.listening.hear(silence(300) + tone(400) + silence(1_000))
        assert ears.told()[-1:] != [], "the silence is known"
        assert ears.ends() == [], "a second of silence is not enough now"
        await ears.listening.hear(silence(1_200))
        assert len(ears.ends()) == 1
        ears.update(SessionSettings(turn_detection=None))
        told = ears.events()
        await ears.listening.hear(UTTERANCE)
        assert (ears.events(), len(ears.ends())) == (told, 1)
        ears.update(SessionSettings())
        await ears.listening.hear(UTTERANCE)
        assert len(ears.ends()) == 2

    play(scenario)


class LastWords(Conversation):
    """A reply is over, and the last 150 ms of it are still on their way when it is first asked."""

    ends_ns = 0

    def saying(self, now_ns: int) -> Saying:
        self.ends_ns = self.ends_ns or now_ns + 150_000_000
        return Saying(now_ns < self.ends_ns, True, "the end")


@pytest.mark.parametrize("size", [960, 1_000_000])
def test_a_recording_that_is_sent_at_once_after_a_reply_is_not_said_over_its_last_words(size: int) -> None:
    recording = tone(2_000) + silence(700)

    async def in_pieces(ears: Ears) -> None:
        for start in range(0, len(recording), size):
            await ears.listening.hear(recording[start : start + size])

    ears = play(in_pieces, lambda: Ears(conversation=LastWords))
    told = [type(event) for event in ears.events()]
    assert told[:3] == [TurnHeld, TurnResumed, SpeechStarted], "it began there, and is no interruption"
    assert do.Measured("holds", 1, "floor_free") in ears.effects


def our_sound() -> bytes:
    """A second, 24 kHz."""
    dice = np.random.default_rng(1)
    loudness = np.repeat(dice.uniform(0.02, 0.2, 20), OUTPUT_RATE // 20)
    pcm: bytes = (dice.standard_normal(OUTPUT_RATE) * loudness * 32_767).astype("<i2").tobytes()
    return pcm


def send(ears: Ears, pcm: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has gone out during the last second. No time passes from now on: what is heard comes in at once."""
    clock = SimpleNamespace(monotonic_ns=lambda: 9 * SECOND_NS)
    monkeypatch.setattr(listening, "time", clock)
    began_ns = clock.monotonic_ns() - SECOND_NS
    for place in range(0, len(pcm), 960):
        ears.listening.sent(pcm[place : place + 960], OUTPUT_RATE, began_ns + place * SECOND_NS // len(pcm))


@pytest.mark.parametrize("was_sent", [True, False])
def test_our_own_sound_that_comes_back_when_we_are_silent_is_no_turn(
    was_sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(ears: Ears) -> None:
        send(ears, our_sound() if was_sent else b"", monkeypatch)
        await ears.listening.hear(our_sound() + silence(700))

    told = [type(event) for event in play(scenario).events()]
    assert (SpeechStarted not in told) is was_sent


@pytest.mark.parametrize(("gap_ms", "first_ms"), [(60, 1_060 - 300), (200, 1_000), (400, 1_400 - 300)])
def test_the_callers_turn_has_nothing_of_our_echo_before_it(
    gap_ms: int, first_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it follows so soon that the caller may have begun in it."""

    async def scenario(ears: Ears) -> None:
        send(ears, our_sound(), monkeypatch)
        await ears.listening.hear(our_sound() + silence(gap_ms) + tone(600) + silence(700))

    assert abs(play(scenario).span()[0] - at(first_ms)) <= 2 * WINDOW_SAMPLES


def test_what_the_client_has_noticed_holds_a_reply_until_it_is_heard_or_not() -> None:
    async def scenario(ears: Ears) -> None:
        ears.listening.alert()
        assert ears.events() == [TurnHeld(0)]
        ears.listening.tick(time.monotonic_ns() + SECOND_NS)
        assert ears.events() == [TurnHeld(0), TurnResumed("unconfirmed")]

    play(scenario, lambda: Ears(conversation=LastWords))


def test_the_onset_is_timed_by_its_sample() -> None:
    async def scenario(ears: Ears) -> None:
        assert ears.listening.speech_onset_ns == 0
        await ears.listening.hear(UTTERANCE)
        assert ears.listening.speech_onset_ns > 0

    play(scenario)


@pytest.mark.parametrize(
    ("detection", "wanted"),
    [
        (TurnDetection(silence_duration_ms=300), EndOfTurnSettings(silence_duration_ms=300)),
        (TurnDetection(kind="semantic_vad", eagerness="high"), EndOfTurnSettings("semantic_vad", eagerness="high")),
    ],
)
def test_the_detector_of_each_detection(detection: TurnDetection, wanted: EndOfTurnSettings) -> None:
    assert detector_settings(detection) == TurnDetectorSettings(threshold=0.5, end_of_turn=wanted)


# ---- how finished it sounds ------------------------------------------------------------------------


class Asked(TurnSoundService):
    """Keeps the questions; `at_once` answers them."""

    def __init__(self, at_once: float | None = None) -> None:
        self.questions: list[tuple[bytes, asyncio.Future[float]]] = []
        self.at_once = at_once

    def ask(self, pcm: bytes) -> asyncio.Future[float]:
        answer: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self.questions.append((pcm, answer))
        if self.at_once is not None:
            answer.set_result(self.at_once)
        return answer


SAID = silence(1_000) + tone(600)


def by_sound(sound: Asked, pcm: bytes, detection: TurnDetection | None = None) -> Ears:
    """After `pcm`, of which no words are known."""
    settings = SessionSettings(turn_detection=detection or TurnDetection("semantic_vad"))
    return play(lambda made: made.listening.hear(pcm), lambda: Ears(settings, turn_sound=sound))


@pytest.mark.parametrize(
    ("sounds", "silent_ms", "has_ended"),
    [(None, 560, False), (None, 700, True), (0.98, 540, True), (0.02, 3_000, False), (0.02, 4_000, True)],
)
def test_a_turn_waits_by_how_finished_it_sounds(sounds: float | None, silent_ms: int, has_ended: bool) -> None:
    ears = by_sound(Asked(sounds), SAID + silence(silent_ms))
    assert bool(ears.ends()) is has_ended


def test_what_is_asked_about_is_the_turn_up_to_its_pause() -> None:
    sound = Asked()
    by_sound(sound, SAID + silence(1_000))
    ((pcm, _),) = sound.questions
    heard = np.frombuffer(pcm, "<i2").astype(float)
    loud = np.flatnonzero(np.abs(heard) > 3_000)
    assert loud[0] == pytest.approx(at(500), abs=WINDOW_SAMPLES)
    assert len(heard) - loud[-1] == pytest.approx(at(128), abs=2 * WINDOW_SAMPLES)


def test_of_a_long_turn_the_end_is_asked_about() -> None:
    sound = Asked()
    by_sound(sound, tone(10_000) + silence(1_000))
    ((pcm, _),) = sound.questions
    assert len(pcm) == 2 * at(8_000)


def test_a_question_whose_pause_is_over_is_cancelled() -> None:
    sound = Asked()
    ears = by_sound(sound, SAID + silence(300) + tone(300) + silence(300))
    (_, first), (_, second) = sound.questions
    assert first.cancelled()
    assert not second.done()
    assert ears.ends() == []


def test_a_turn_that_ends_by_its_words_cancels_the_question() -> None:
    sound = Asked()
    ears = by_sound(sound, SAID + silence(700))
    ((_, answer),) = sound.questions
    assert answer.cancelled()
    assert len(ears.ends()) == 1


def test_where_no_answer_comes_the_words_decide() -> None:
    class Broken(Asked):
        def ask(self, pcm: bytes) -> asyncio.Future[float]:
            answer = super().ask(pcm)
            answer.cancel()
            return answer

    assert by_sound(Broken(), SAID + silence(560)).ends() == []
    assert len(by_sound(Broken(), SAID + silence(700)).ends()) == 1


def test_the_silence_that_a_client_asks_for_heeds_no_sound() -> None:
    sound = Asked(0.02)
    ears = by_sound(sound, SAID + silence(600), TurnDetection("server_vad"))
    assert len(ears.ends()) == 1
    assert sound.questions == []
