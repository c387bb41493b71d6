"""What hearing costs: CPU of voice activity and turn logic for each second of each call, at one call and at 100.

Theory of operation
    Calls hear a caller who speaks and pauses, in pieces of 20 ms as WebRTC brings them, in real time and out of step,
    through the gateway's own way in: resampling, ring, the VAD's thread with its batches, turn detector, conversation.
    Transcripts come at once; nothing is answered. Counted is what the kernel gave to this process, less what the same
    pieces cost where nobody hears them, and of that what it gave to the VAD's thread. The floor is the bare network in
    batches of the same sizes at the same moments, since caches go cold in between; turn logic is timed by itself, on
    the probabilities of the run.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from benchmarks.figures import percentile
from benchmarks.speech import QUESTIONS, utterance
from benchmarks.turns import Say
from duplex.listening import Listening, ListeningPorts
from duplex.tasks import stop_task
from duplex.vad_service import VadService, Window
from media.speech_gate import VAD_SAMPLE_RATE, WINDOW_SAMPLES
from media.turn_detector import TurnDetector
from media.turn_events import SILENT, HeardWindow
from media.turn_settings import TurnDetectorSettings
from media.vad import CONTEXT_SAMPLES, STATE_SHAPE, SileroVad
from sessions import effects as do
from sessions.conversation import Conversation
from sessions.planner import Identity, ReplyDefaults
from sessions.settings import INPUT_RATE, OUTPUT_RATE, SessionSettings, TurnDetection
from stages import weights
from stages.contracts import AudioIn, EndOfTurn, Item, Tag, Transcript

CALLS = (1, 100)
SECONDS = 20
PIECE_S = 0.02
PIECE_BYTES = 2 * int(OUTPUT_RATE * PIECE_S)
PAUSE_S = 1.5  # after each sentence, so that its turn ends
ROUNDS = 5
SPEECH_DB = -26.0
EPOCH = 1 << 20

Hear = Callable[[bytes], Coroutine[None, None, object]]


@dataclass(slots=True)
class TimedVad:
    """The network in the VAD's thread, with that thread's CPU and the sizes of its batches."""

    model: SileroVad
    cpu_ns: int = 0
    batches: list[tuple[int, int]] = field(default_factory=list)  # when each was begun, in ns, and its size
    probabilities_of: dict[int, list[float]] = field(default_factory=dict)

    def probabilities(self, batch: Sequence[Window]) -> list[float]:
        self.batches.append((time.monotonic_ns(), len(batch)))
        began_ns = time.thread_time_ns()
        found = self.model.probabilities(batch)
        self.cpu_ns += time.thread_time_ns() - began_ns
        for (state, _), probability in zip(batch, found, strict=True):
            self.probabilities_of.setdefault(id(state), []).append(probability)
        return found


class Ears:
    """The way in of one call, behind which an encoder understands at once."""

    def __init__(self, vad: VadService, number: int) -> None:
        ids = itertools.count()
        identity = Identity(f"sess_{number}", EPOCH, lambda prefix: f"{prefix}_{next(ids)}")
        settings = SessionSettings(turn_detection=TurnDetection(create_response=False))
        self._talk = Conversation(identity, settings, ReplyDefaults("", 1), transport_lead_ms=0)
        self.listening = Listening(self._talk, vad, ListeningPorts(self._carry_out, self._feed))

    def _carry_out(self, effects: Sequence[do.Effect]) -> None:
        for effect in effects:
            match effect:
                case do.FeedStream("encoder", tag, item):
                    self.listening.tell_encoder(tag, item)
                case do.HearFrom(tag, sample, until):
                    self.listening.hear_from(tag, sample, until)
                case do.StopHearing(tag, until):
                    self.listening.stop_hearing(tag, until)

    def _feed(self, tag: Tag, item: Item, units: int) -> None:
        asyncio.get_running_loop().call_soon(self._encoded, tag, item, units)

    def _encoded(self, tag: Tag, item: Item, units: int) -> None:
        if isinstance(item, AudioIn):
            self.listening.credit_returned(tag, units)
        elif isinstance(item, EndOfTurn):
            heard = Transcript("yes", item.sample, settled=True, final=True)
            self._carry_out(self._talk.published(tag, heard, time.monotonic_ns()))
            self.listening.drop(tag)


async def turn_cpu(say: Say, *, seconds: int) -> bool:
    """ms of CPU for each second of each call's sound."""
    pcm = _spoken(seconds)
    for calls in CALLS:
        await _measure(say, pcm, calls)
    return True


def _spoken(seconds: int) -> bytes:
    """So much of a caller's sound, PCM16 at 24 kHz."""
    pause = bytes(2 * int(PAUSE_S * OUTPUT_RATE))
    once = b"".join(utterance(text).pcm + pause for text in QUESTIONS)
    return (once * (1 + 2 * seconds * OUTPUT_RATE // len(once)))[: 2 * seconds * OUTPUT_RATE]


async def _measure(say: Say, pcm: bytes, calls: int) -> None:
    timed = TimedVad(SileroVad(weights.locate("silero-vad")))
    service = VadService(timed)
    serving = asyncio.create_task(service.run())
    ears = [Ears(service, number) for number in range(calls)]
    all_ns, late_s = await _hear_all([one.listening.hear for one in ears], pcm)
    await stop_task(serving)
    pacing_ns, _ = await _hear_all([_nobody] * calls, pcm)
    floor_ns = await asyncio.to_thread(_floor_ns, timed.batches)
    logic_ns = _logic_ns(list(timed.probabilities_of.values()))
    sizes = [size for _, size in timed.batches]
    heard_s = sum(sizes) * WINDOW_SAMPLES / VAD_SAMPLE_RATE
    batches = f"batches of {percentile(sizes, 0.5):.0f} (median), {max(sizes)} (max)"
    say(f"{calls} call(s), {heard_s:.0f} s of sound in all, {batches}; at their end late by {late_s:.2f} s")
    for name, spent_ns in (
        ("the whole way in", all_ns - pacing_ns),
        ("the VAD's thread", timed.cpu_ns),
        ("floor: the bare network, the same batches", floor_ns),
        ("turn logic", logic_ns),
    ):
        say(f"    {name:<44} {spent_ns / heard_s / 1e6:7.3f} ms/s   ratio {spent_ns / floor_ns:6.3f}")


async def _nobody(_pcm: bytes) -> None:
    return


async def _hear_all(hears: Sequence[Hear], pcm: bytes) -> tuple[int, float]:
    """CPU of this process while all hear `pcm` in real time, and by how much the last was late. Each begins elsewhere
    in it, so that not all speak at once."""
    began_s, began_ns = time.monotonic(), time.process_time_ns()
    pieces = [pcm[at : at + PIECE_BYTES] for at in range(0, len(pcm), PIECE_BYTES)]
    hearing = [
        _hear_one(hear, pieces, number * len(pieces) // len(hears), began_s + PIECE_S * number / len(hears))
        for number, hear in enumerate(hears)
    ]
    late_s = await asyncio.gather(*hearing)
    return time.process_time_ns() - began_ns, max(late_s)


async def _hear_one(hear: Hear, pieces: Sequence[bytes], first: int, began_s: float) -> float:
    for number in range(len(pieces)):
        await asyncio.sleep(max(0.0, began_s + (number + 1) * PIECE_S - time.monotonic()))
        await hear(pieces[(first + number) % len(pieces)])
    return time.monotonic() - began_s - len(pieces) * PIECE_S


def _floor_ns(batches: Sequence[tuple[int, int]]) -> int:
    """CPU of the network alone on batches of these sizes, begun at these moments."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    path = weights.locate("silero-vad")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    inputs = {size: _inputs(size) for size in {size for _, size in batches}}
    spent_ns, first_ns, began_ns = 0, batches[0][0], time.monotonic_ns()
    for at_ns, size in batches:
        time.sleep(max(0, began_ns + at_ns - first_ns - time.monotonic_ns()) / 1e9)
        before_ns = time.thread_time_ns()
        session.run(None, inputs[size])
        spent_ns += time.thread_time_ns() - before_ns
    return spent_ns


def _inputs(size: int) -> dict[str, NDArray[np.generic]]:
    noise = np.random.default_rng(1).normal(0, 0.1, (size, CONTEXT_SAMPLES + WINDOW_SAMPLES)).astype(np.float32)
    state = np.zeros((STATE_SHAPE[0], size, STATE_SHAPE[1]), dtype=np.float32)
    return {"input": noise, "state": state, "sr": np.array(VAD_SAMPLE_RATE, dtype=np.int64)}


def _logic_ns(probabilities: Sequence[Sequence[float]]) -> float:
    """CPU of the turn detectors of all calls, the median of `ROUNDS`."""
    window_ns = WINDOW_SAMPLES * 1_000_000_000 // INPUT_RATE
    spent: list[int] = []
    for _ in range(ROUNDS):
        detectors = [TurnDetector(TurnDetectorSettings()) for _ in probabilities]
        began_ns = time.process_time_ns()
        for detector, heard in zip(detectors, probabilities, strict=True):
            for number, probability in enumerate(heard, 1):
                window = HeardWindow(probability, number * WINDOW_SAMPLES, SPEECH_DB)
                detector.window(window, SILENT, number * window_ns)
        spent.append(time.process_time_ns() - began_ns)
    return percentile(spent, 0.5)
