"""The way in of one call: bytes from the client to speech events, and to the encoder.

Theory of operation
    Client audio is decoded, resampled once to 16 kHz and kept in a ring. Each full window goes to the VAD of all calls,
    its probability to this call's turn detector, and what that says to the conversation. While a turn is heard, the
    ring is read from before its onset and fed to the encoder under that edge's credit; the ring's length is what a slow
    encoder may lag behind before the client is made to wait. So is what a client sends that detects turns itself: it is
    heard as it comes, and its commit has little left to wait for.

Rules
* Offsets are absolute 16 kHz samples of the session's input, never times.
* What comes faster than it can be spoken is judged by what the caller hears of us when it would be (`InputPace`).
* The encoder hears what has been judged: whole windows, so that what it gets depends on no message's size.
* Sound that comes after a change of its format is of the new one. The resampler holds 2 ms of sound from a telephone
  back, 1 ms of any other; a change loses none of it.
* Sound that stops coming amid a turn counts as silence once it is missing (`MissingSound`), unless it is we who have
  yet to take what has come.
* Offsets of the client's, at its rate, go on from connection to connection (`InputOffsets`): what it sends twice is
  heard once, and what it has left out is silence.
* `hear` returns only when its audio has been judged and fed or safely kept, so a flood of input waits in the client's
  own socket.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from duplex.encoder_feed import EncoderFeed
from duplex.turn_sound_service import SOUND_SECONDS_MAX, TurnSoundService
from duplex.vad_service import VadService
from media.audio_format import FORMATS, AudioFormat
from media.beep import BeepDetector
from media.chunk import BYTES_PER_SAMPLE
from media.echo import PIECE_SAMPLES_MAX, UNLIKE, Echo, Likeness
from media.end_of_turn import EndOfTurnSettings
from media.input_offsets import InputOffsets, Placed
from media.input_pace import InputPace
from media.input_ring import InputRing
from media.missing_sound import MissingSound
from media.pcm import FloatSamples, PcmAligner, float_to_pcm16, pcm16_to_float
from media.resample import StreamResampler
from media.speech_gate import WINDOW_SAMPLES
from media.turn_detector import TurnDetector
from media.turn_events import (
    HeardWindow,
    Held,
    Resumed,
    SoundWanted,
    TurnDropped,
    TurnEnded,
    TurnEvent,
    TurnPaused,
    TurnResumed,
    TurnStarted,
    Yielded,
)
from media.turn_settings import TurnDetectorSettings
from media.vad import VadState
from media.voice_level import level_db
from sessions.conversation import Conversation
from sessions.effects import Effect, HearFrom, Overheard, StopHearing
from sessions.settings import INPUT_RATE, TurnDetection
from stages.contracts import Item, Tag
from stages.messages import Feed

RING_SECONDS = 20
SLICES_PER_SECOND = 10  # input is judged in pieces of 100 ms
# The model of `media.smart_turn` is used to 200 ms of silence behind the last word, of which the VAD misses up to 90,
# and to half a second before the first (pipecat's VADParams and SmartTurnParams). Its answer must come before a
# finished sentence ends the turn, also on a busy machine.
SOUND_MS = 128
SOUND_LEAD_SAMPLES = INPUT_RATE // 2
# Speech begins up to so long before its onset is noticed: of an echo that ended later, it may have covered the end.
ECHO_GAP_SAMPLES = 96 * INPUT_RATE // 1_000


def detector_settings(detection: TurnDetection, *, by_sound: bool = False) -> TurnDetectorSettings:
    """The detector of the asked-for detection; `by_sound`: somebody can tell how finished a turn sounds."""
    end = EndOfTurnSettings(detection.kind, detection.silence_duration_ms, detection.eagerness)
    sound_ms = SOUND_MS if by_sound else None
    return TurnDetectorSettings(threshold=detection.threshold, end_of_turn=end, sound_ms=sound_ms)


@dataclass(frozen=True, slots=True)
class ListeningPorts:
    """What the way in needs of its call."""

    carry_out: Callable[[Sequence[Effect]], None]
    feed_encoder: Callable[[Tag, Item, int], None]


@dataclass(frozen=True, slots=True)
class _Question:
    """Does the turn sound finished, in its pause since sample `pause`?"""

    pause: int
    answer: asyncio.Future[float]


class Listening:
    """`client_format`: of what comes in; None: as the session's settings say. `turn_sound`: None where words alone end
    turns."""

    def __init__(
        self,
        conversation: Conversation,
        vad: VadService,
        ports: ListeningPorts,
        *,
        client_format: AudioFormat | None = None,
        turn_sound: TurnSoundService | None = None,
    ) -> None:
        self._conversation = conversation
        self._vad = vad
        self._turn_sound = turn_sound
        self._question: _Question | None = None
        self._ports = ports
        self._client_format = client_format
        self._format = self._format_now
        self._aligner = PcmAligner()
        self._resampler = StreamResampler(self._format.sample_rate, INPUT_RATE)
        self._first = begins = conversation.hearing.input_from
        self._offsets = InputOffsets(self._at_client(begins), self._format.sample_rate)
        self._ring = InputRing(RING_SECONDS * INPUT_RATE, begins)
        self._vad_state = VadState()
        self._detector = TurnDetector(self._detector_settings(conversation.settings.turn_detection or TurnDetection()))
        self._beeps = BeepDetector()
        self._echo = Echo()
        self._echo_end = 0  # where our echo ended last
        self._onset = 0
        self._pace = InputPace(INPUT_RATE)
        self._missing = MissingSound(INPUT_RATE)
        self._is_taking = False  # what has come
        self._judged = begins
        self._judged_ns = 0
        self._consumed = begins
        self._taken = begins  # up to here the words are those of turns that are over
        self._speech_onset_ns = 0
        self._feed = EncoderFeed(self._ring)
        self._room = asyncio.Event()

    def sent(self, pcm: bytes, sample_rate: int, sounds_ns: int) -> None:
        """PCM16 of ours has left, which an ear without any delay has from `sounds_ns` on. Its echo is no speech."""
        self._echo.sent(pcm, sample_rate, sounds_ns)

    @property
    def received_samples(self) -> int:
        """Where the client's next sample stands in the session's input, at its rate."""
        return self._offsets.next_sample

    @property
    def has_own_format(self) -> bool:
        """What comes in has a format of its own, whatever the session's settings say."""
        return self._client_format is not None

    @property
    def client_rate(self) -> int:
        """Samples per second of what comes in."""
        return self._format.sample_rate

    def _at_client(self, sample: int) -> int:
        return sample * self._format.sample_rate // INPUT_RATE

    def is_coming(self, now_ns: int) -> bool:
        """Sound has come, and goes on, as far as can be told (`media.missing_sound`)."""
        return self._missing.is_coming(now_ns)

    @property
    def credit_out(self) -> int:
        """Samples, 16 kHz, that the encoder was fed and has not used yet."""
        return self._feed.credit_out

    @property
    def newest(self) -> int:
        """The end of the input so far, 16 kHz."""
        return self._ring.newest

    @property
    def heard_samples(self) -> int:
        """How much has come on this connection, 16 kHz."""
        return self._ring.newest - self._first

    @property
    def oldest(self) -> int:
        """From where on the input is kept, 16 kHz."""
        return self._ring.oldest

    @property
    def uncommitted_from(self) -> int:
        """Where audio begins that no turn has taken, as far as it is still kept; 16 kHz."""
        return max(self._consumed, self.oldest)

    def settings_changed(self) -> None:
        detection = self._conversation.settings.turn_detection
        if detection is not None:
            self._detector.settings = self._detector_settings(detection)
            return
        self._act_on(self._detector.reset())

    @property
    def _format_now(self) -> AudioFormat:
        """Of the sound that comes next."""
        return self._client_format or FORMATS[self._conversation.settings.input_format]

    def _detector_settings(self, detection: TurnDetection) -> TurnDetectorSettings:
        return detector_settings(detection, by_sound=self._turn_sound is not None)

    def reset_gate(self) -> None:
        """Forget the speech that is being detected; what came in so far belongs to no later turn."""
        self._act_on(self._detector.reset())
        self._consumed = self._taken = self._ring.newest

    def overheard(self, text: str, settled: bool) -> None:
        """What the turn that is being spoken has said so far."""
        self._act_on(self._detector.transcript(text, settled, time.monotonic_ns()))

    def order(self, effect: HearFrom | StopHearing | Overheard) -> None:
        """Carry out what the conversation asks of the way in."""
        match effect:
            case HearFrom(tag, sample, until):
                self.hear_from(tag, sample, until)
            case StopHearing(tag, until):
                self.stop_hearing(tag, until)
            case Overheard(text, settled):
                self.overheard(text, settled)

    def tick(self, now_ns: int) -> None:
        """Decide what must be decided by now, though no sound comes."""
        due_ns = self._detector.next_deadline_ns()
        if due_ns is not None and now_ns >= due_ns:
            self._act_on(self._detector.tick(now_ns))
        missing = self._missing.samples(now_ns)
        if missing and not self._is_taking:
            self._act_on(self._detector.missing(missing, now_ns))

    def alert(self) -> None:
        """The client has noticed that its caller speaks."""
        now_ns = time.monotonic_ns()
        self._act_on(self._detector.alert(self._conversation.saying(now_ns), now_ns))

    # ---- in ----------------------------------------------------------------------------------------

    async def hear(self, coded: bytes, start: int | None = None) -> Placed:
        """Take sound in the client's format, any number of bytes; where it stands. `start`: the offset of its first
        sample, as the client says. Raises `InputGapError`."""
        self._is_taking = True
        try:
            return await self._hear(coded, start)
        finally:
            self._is_taking = False

    async def _hear(self, coded: bytes, start: int | None) -> Placed:
        if self._format_now != self._format:
            await self._change_format(self._format_now)
        if start is not None and start != self._offsets.next_sample:
            self._aligner.reset()  # half a sample that is not followed by its other half
        aligned = self._aligner.align(self._format.decode(coded))
        has_begun = self._offsets.has_begun
        placed = self._offsets.place(start, len(aligned) // BYTES_PER_SAMPLE)
        if start is not None and not has_begun and self._offsets.has_begun:
            self._begin_again(placed.start)
        elif placed.gap:
            await self._process(bytes(placed.gap * BYTES_PER_SAMPLE))
        await self._process(aligned[placed.skip * BYTES_PER_SAMPLE :])
        return placed

    def _begin_again(self, start: int) -> None:
        """The client sends what it had kept, beginning `start`: all of it that may not have been understood."""
        since = max(self._ring.newest, start * INPUT_RATE // self._format.sample_rate)
        self._ring.begin_at(since)
        self._first = self._judged = self._consumed = self._taken = since
        self._ports.carry_out(self._conversation.heard_again(since))

    async def _process(self, pcm: bytes) -> None:
        slice_bytes = self._format.sample_rate // SLICES_PER_SECOND * BYTES_PER_SAMPLE
        for start in range(0, len(pcm), slice_bytes):
            await self._take(self._resampler.process(pcm16_to_float(pcm[start : start + slice_bytes])))

    async def _change_format(self, wanted: AudioFormat) -> None:
        await self._take(self._resampler.flush())
        self._format = wanted
        self._aligner.reset()
        self._resampler = StreamResampler(wanted.sample_rate, INPUT_RATE)
        self._offsets.go_on(self._at_client(self._ring.newest), wanted.sample_rate)

    async def _take(self, samples: FloatSamples) -> None:
        """Keep and judge what follows in the input, 16 kHz."""
        await self._wait_for_room(len(samples))
        self._ring.append(float_to_pcm16(samples))
        self._missing.came(len(samples), time.monotonic_ns())
        await self._judge()

    async def _judge(self) -> None:
        while self._ring.newest - self._judged >= WINDOW_SAMPLES:
            end = self._judged + WINDOW_SAMPLES
            window = pcm16_to_float(self._ring.read(self._judged, end).pcm)
            self._judged = end
            probability = None
            if self._conversation.settings.turn_detection is None:
                if self.uncommitted_from < end:
                    self._ports.carry_out(self._conversation.buffered(self.uncommitted_from, end))
                await asyncio.sleep(0)  # other calls, and the encoder's credit, have their turn
            else:
                probability = await self._vad.probability(self._vad_state, window)
            self._send(self._feed.judged(end))
            if probability is not None:
                now_ns = self._judged_ns = time.monotonic_ns()
                saying = self._conversation.saying(self._pace.spoken_ns(WINDOW_SAMPLES, now_ns))
                heard = HeardWindow(probability, end, level_db(window), self._likeness(probability, end, now_ns))
                self._act_on(self._detector.window(heard, saying, now_ns))
                self._listen_for_beep(window, end, probability)
                self._look_for_answer(now_ns)

    def _likeness(self, probability: float, end: int, now_ns: int) -> Likeness:
        """Whether the window before `end`, which has just come, is our own echo; asked where it sounds like speech."""
        if probability < self._detector.settings.threshold or not self._echo.may_be_heard(now_ns):
            return UNLIKE
        kept = self._ring.read(max(self._ring.oldest, end - PIECE_SAMPLES_MAX), end)
        likeness = self._echo.judge(pcm16_to_float(kept.pcm), end, now_ns)
        if likeness.is_ours:
            self._echo_end = likeness.until
        return likeness

    def _listen_for_beep(self, window: FloatSamples, end: int, probability: float) -> None:
        is_voice = probability >= self._detector.settings.threshold
        beep = self._beeps.window(window, end, is_voice=is_voice)
        if beep is not None:
            self._ports.carry_out(self._conversation.beeped(beep, time.monotonic_ns()))

    def _look_for_answer(self, now_ns: int) -> None:
        """What is known by now of the sound of the present pause."""
        asked = self._question
        if asked is None:
            return
        if asked.pause != self._detector.pause:
            asked.answer.cancel()
        if asked.answer.done():
            self._question = None
            if not asked.answer.cancelled():
                self._act_on(self._detector.sounded(asked.pause, asked.answer.result(), now_ns))

    def _ask(self, wanted: SoundWanted) -> None:
        assert self._turn_sound is not None, "the detector was told that there is somebody to ask"
        start = max(wanted.onset_sample - SOUND_LEAD_SAMPLES, wanted.at - SOUND_SECONDS_MAX * INPUT_RATE)
        pcm = self._ring.read(start, wanted.at).pcm
        self._question = _Question(wanted.sample, self._turn_sound.ask(pcm))

    def _act_on(self, events: Sequence[TurnEvent]) -> None:
        for event in events:
            self._ports.carry_out(self._turn_event(event, time.monotonic_ns()))

    def _turn_event(self, event: TurnEvent, now_ns: int) -> list[Effect]:
        talk = self._conversation
        match event:
            case TurnStarted(onset, _):
                self._begins(onset, now_ns)
                return talk.speech_started(onset, now_ns)
            case TurnPaused(sample):
                return talk.speech_paused(sample)
            case TurnResumed():
                return talk.speech_resumed(now_ns)
            case TurnEnded(sample, at):
                self._consumed, self._taken = at, sample
                return talk.speech_ended(sample, self._when(sample, self._judged_ns), now_ns)
            case SoundWanted():
                self._ask(event)
                return []
            case _:
                return self._over_our_speech(event, now_ns)

    def _over_our_speech(self, event: Held | Resumed | Yielded | TurnDropped, now_ns: int) -> list[Effect]:
        talk = self._conversation
        match event:
            case Held(onset):
                self._begins(onset, now_ns)
                return talk.held(onset, now_ns)
            case Resumed(why):
                return talk.resumed(why)
            case Yielded(onset, why):
                return talk.interrupted(onset, why, now_ns)
            case TurnDropped():
                return talk.dropped(now_ns)

    def _begins(self, onset: int, now_ns: int) -> None:
        self._onset, self._speech_onset_ns = onset, self._when(onset, now_ns)

    def _when(self, sample: int, now_ns: int) -> int:
        """When `sample` came in, if the client sends in real time and the newest came at `now_ns`."""
        return now_ns - (self._ring.newest - sample) * 1_000_000_000 // INPUT_RATE

    @property
    def speech_onset_ns(self) -> int:
        """When the first sample of the last speech came in."""
        return self._speech_onset_ns

    # ---- to the encoder ----------------------------------------------------------------------------

    def hear_from(self, tag: Tag, sample: int, until: int | None) -> None:
        """Feed `tag` from `sample` on, as far as it is still kept. A turn that goes on hears nothing of those before
        it, nor what was cleared, however far its padding reaches; nor an echo before what is spoken now."""
        if until is None:
            sample = max(sample, self._taken)
            if self._echo_end + ECHO_GAP_SAMPLES <= self._onset:
                sample = max(sample, self._echo_end)
        self._send(self._feed.hear_from(tag, sample, until))

    def stop_hearing(self, tag: Tag, until: int | None = None) -> None:
        """Nothing behind `until`, or what its turn has taken, belongs to `tag`; what it has not had of that is still
        fed."""
        self._send(self._feed.stop_hearing(tag, self._consumed if until is None else until))

    def tell_encoder(self, tag: Tag, item: Item) -> None:
        """Feed `item` behind the audio that came in before it."""
        self._send(self._feed.tell(tag, item))

    def drop(self, tag: Tag) -> None:
        """The encoder's stream is gone."""
        self._feed.drop(tag)
        self._room.set()

    def credit_returned(self, tag: Tag, samples: int) -> None:
        self._send(self._feed.credit_returned(tag, samples))

    def _send(self, feeds: Sequence[Feed]) -> None:
        for feed in feeds:
            self._ports.feed_encoder(feed.tag, feed.item, feed.units)
        self._room.set()

    async def _wait_for_room(self, samples: int) -> None:
        """Wait until `samples` more push nothing out of the ring that the encoder has yet to hear."""
        while self._feed.would_lose(samples):
            self._room.clear()
            await self._room.wait()
