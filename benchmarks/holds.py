"""A thousand holds at random points: what was held goes on where it stopped, and nobody hears a seam.

Theory of operation
    The synthetic engine speaks coded tones, so every sample of a reply is known before it is said. Callers make a short
    sound over it and are silent again after a while: the reply is held, and goes on. Over a WebSocket the samples that
    came are compared with those of the reply, outside of the ramps one by one. Over WebRTC, where Opus changes samples,
    the words are decoded: each must be there, once and whole.

    A click is a step, which no smooth sound has. Its measure is the largest second difference of what was played, with
    the silence of the hold in it, beside the largest of the reply elsewhere. Where a busy machine let a reply run dry,
    there is a silence that is no hold's; calls over WebRTC in which that was so are not measured for clicks.

Rules
* A caller makes `HOLDS_PER_CALL` sounds in a call: after more of them in vain, holding by sound alone is suspended.
* Of a word that was held near its end up to two ramps may be too soft to be made out; a frame that is lost is longer.
* A sound that a late caller drew out may be an interruption. It is counted, and its reply is judged no further.
"""

from __future__ import annotations

import asyncio
import base64
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from benchmarks.figures import percentile
from benchmarks.heard_error.plan import Transport
from benchmarks.heard_error.run import CALLS_AT_ONCE, oracle_service
from benchmarks.turns import Say
from loadtest.coded_ear import CodedEar
from media.coded_tones import EAR_RATE, encode, response_number
from media.fade import FADE_MS
from media.pcm import float_to_pcm16, pcm16_to_float
from media.resample import StreamResampler
from tests.live.caller import RATE, Message, calling, silence, tone
from tests.live.coded_caller import CodedCaller, Network
from tests.live.coded_rtc_caller import CodedRtcCaller, coded_rtc_calling
from tests.live.rtc_caller import RATE as RTC_RATE
from tests.live.service import Service

HOLDS = 1_000
HOLDS_PER_CALL = 2
WEBRTC_SHARE = 0.2
WORDS = 12
FADE = FADE_MS * RATE // 1_000
SEED = 20261130
AUDIO = "response.output_audio.delta"

# A sound that is shorter than an interruption by far, then silence that ends it.
SOUND_MS_MIN, SOUND_MS_MAX = 100, 200
SILENCE_MS = 400
HELD_MS_MAX = 500
# Between the reply's beginning and the first sound, and between that and the next.
WAIT_MS_MIN, WAIT_MS_MAX = 100, 800
REPLY_MS_MAX = 10_000
SEAM_MS = 20  # on either side of the silence, in which a click would be
LOST_SAMPLES_MAX = 2 * FADE_MS * EAR_RATE // 1_000 - 1
LOUD = 0.02  # of full scale, above what Opus makes of silence
# A stop without a ramp has up to about 2. Opus has ripples of its own beside every silence.
CLICK_RATIO_MAX, CLICK_RATIO_OPUS_MAX = 1.05, 1.5
INTERRUPTED_SHARE_MAX = 0.02

Samples = NDArray[np.float64]


@dataclass(slots=True)
class Held:
    """What was found. `click_ratios`: one for each seam; `faults` counts, by name, what must not be."""

    holds: int = 0
    interrupted: int = 0
    seams: int = 0
    samples: int = 0
    click_ratios: list[float] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)

    def fault(self, name: str, count: int = 1) -> None:
        if count:
            self.faults[name] = self.faults.get(name, 0) + count

    def add(self, other: Held) -> None:
        self.holds += other.holds
        self.interrupted += other.interrupted
        self.seams += other.seams
        self.samples += other.samples
        self.click_ratios += other.click_ratios
        for name, count in other.faults.items():
            self.fault(name, count)


async def holds(say: Say, *, count: int) -> bool:
    """`count` holds in all; good where nothing was lost, doubled or changed, and no seam stands out."""
    over_webrtc = round(count * WEBRTC_SHARE)
    with oracle_service(WORDS) as service:
        pcm = await measure_holds(say, service, "websocket", count - over_webrtc)
        opus = await measure_holds(say, service, "webrtc", over_webrtc)
    return _report(say, "WebSocket", pcm, CLICK_RATIO_MAX) & _report(say, "WebRTC", opus, CLICK_RATIO_OPUS_MAX)


def _report(say: Say, name: str, held: Held, ratio_max: float) -> bool:
    what = f"{held.samples} samples compared" if held.samples else "words decoded"
    say(f"{name}: {held.holds} holds, {held.seams} of them amid sound; {what}; interrupted {held.interrupted}")
    ratios = held.click_ratios or [0.0]
    shares = ", ".join(f"{name} {percentile(ratios, share):.2f}" for name, share in (("median", 0.5), ("p95", 0.95)))
    say(f"    largest second difference at a seam by that elsewhere: {shares}, max {max(ratios):.2f}")
    say(f"    faults: {', '.join(f'{fault} {count}' for fault, count in sorted(held.faults.items())) or 'none'}")
    is_judged = held.interrupted <= max(1, INTERRUPTED_SHARE_MAX * held.holds)
    return not held.faults and is_judged and max(ratios) <= ratio_max


async def measure_holds(say: Say, service: Service, transport: Transport, count: int) -> Held:
    """Calls until there have been `count` sounds."""
    held, calls, began_s = Held(), -(-count // HOLDS_PER_CALL), time.monotonic()
    at_once = CALLS_AT_ONCE[transport]
    with ThreadPoolExecutor(at_once) as threads:
        for first in range(0, calls, at_once):
            seeds = range(SEED + first, SEED + min(calls, first + at_once))
            for one in await asyncio.gather(*(_call(service, transport, seed, threads) for seed in seeds)):
                held.add(one)
            say(f"{transport}: {held.holds} of {count} holds, {time.monotonic() - began_s:.0f} s")
    return held


async def _call(service: Service, transport: Transport, seed: int, threads: ThreadPoolExecutor) -> Held:
    dice = random.Random(f"{transport}/{seed}")
    if transport == "websocket":
        return await asyncio.get_running_loop().run_in_executor(threads, _over_websocket, service, dice)
    return await _over_webrtc(service, dice)


# ---- over a WebSocket ------------------------------------------------------------------------------------------


def _over_websocket(service: Service, dice: random.Random) -> Held:
    with calling(service) as plain:
        caller = CodedCaller(plain, Network())
        caller.type_text("Tell me everything.")
        caller.send("response.create")
        caller.until(AUDIO)
        for _ in range(HOLDS_PER_CALL):
            caller.listen_for(dice.randrange(WAIT_MS_MIN, WAIT_MS_MAX))
            caller.hear(tone(dice.randrange(SOUND_MS_MIN, SOUND_MS_MAX)))
            caller.listen_for(dice.randrange(HELD_MS_MAX))
            caller.hear(silence(SILENCE_MS))
        done = caller.find(lambda event: event["type"] == "response.done")["response"]
        count = _holds_in(caller.events)
        if done["status"] == "cancelled":
            return Held(holds=count, interrupted=1)
        return judge_frames(caller.of_type(AUDIO), done["id"], WORDS, count)


def _holds_in(events: Sequence[Message]) -> int:
    return sum(event["type"] == "turn.held" for event in events)


def said(response: str, words: int, rate: int) -> Samples:
    """The reply as it is without a hold, int16 values."""
    sound = np.concatenate([encode(response_number(response), word, rate) for word in range(words)])
    return np.frombuffer(float_to_pcm16(sound), dtype="<i2").astype(np.float64)


def judge_frames(frames: Sequence[Message], response: str, words: int, count: int) -> Held:
    """The frames of a reply in which there were `count` holds, against the reply of so many words."""
    held = Held(holds=count)
    ends = [0, *(frame["start_sample"] + frame["samples"] for frame in frames)]
    held.fault("a gap or a sample twice", sum(f["start_sample"] != end for f, end in zip(frames, ends, strict=False)))
    wanted = said(response, words, RATE)
    came = np.frombuffer(b"".join(base64.b64decode(f["delta"]) for f in frames), dtype="<i2").astype(np.float64)
    if len(came) != len(wanted):
        held.fault("not as long as the reply")
        return held
    seams = [before["start_sample"] for before, _ in pairwise(frames) if before["samples"] == FADE]
    ramps = np.zeros(len(wanted), dtype=bool)
    for seam in seams:
        ramps[seam : seam + 2 * FADE] = True
    held.seams, held.samples = len(seams), int((~ramps).sum())
    held.fault("a sample that differs", int((came != wanted)[~ramps].sum()))
    held.fault("louder within a ramp", int((np.abs(came) > np.abs(wanted))[ramps].sum()))
    held.click_ratios = [_click_ratio(came, seam + FADE, wanted) for seam in seams]
    return held


def _click_ratio(came: Samples, seam: int, wanted: Samples) -> float:
    """At the seam, with silence in it, beside the whole of what was wanted."""
    reach = SEAM_MS * RATE // 1_000
    played = np.concatenate((came[max(0, seam - reach) : seam], np.zeros(reach), came[seam : seam + reach]))
    return float(np.abs(np.diff(played, 2)).max() / np.abs(np.diff(wanted, 2)).max())


# ---- over WebRTC -----------------------------------------------------------------------------------------------


async def _over_webrtc(service: Service, dice: random.Random) -> Held:
    async with coded_rtc_calling(service, Network(), reports=False) as caller:
        await caller.ask("Tell me everything.")
        await caller.until("output_audio_buffer.started")
        for _ in range(HOLDS_PER_CALL):
            await asyncio.sleep(dice.randrange(WAIT_MS_MIN, WAIT_MS_MAX) / 1_000)
            await _sound(caller, dice.randrange(SOUND_MS_MIN, SOUND_MS_MAX))
        done = (await caller.until("response.done"))["response"]
        await caller.hear_frames(15)
        count, sound = _holds_in(caller.events), caller.sound()
    if done["status"] == "cancelled":
        return Held(holds=count, interrupted=1)
    return await asyncio.to_thread(judge_words, sound, done["id"], WORDS, count)


async def _sound(caller: CodedRtcCaller, ms: int) -> None:
    """A short sound, and as much silence as makes it one."""
    caller.microphone.talking = True
    await asyncio.sleep(ms / 1_000)
    caller.microphone.talking = False
    await asyncio.sleep(SILENCE_MS / 1_000)


def judge_words(pcm: bytes, response: str, words: int, count: int) -> Held:
    """What was heard at `RTC_RATE` of a reply in which there were `count` holds, against the reply of so many words."""
    held = Held(holds=count)
    heard = CodedEar(pcm, RTC_RATE).words_of(response)
    held.fault("words out of order, or twice", [word.word for word in heard] != list(range(words)))
    held.fault("a word that is not whole", sum(word.lost_samples > LOST_SAMPLES_MAX for word in heard))
    resampler = StreamResampler(RTC_RATE, EAR_RATE)
    came = np.concatenate((resampler.process(pcm16_to_float(pcm)), resampler.flush())).astype(np.float64)
    silences = _silences(came)
    held.seams = len(silences)
    if held.seams <= count:
        held.click_ratios = _click_ratios(came, silences)
    return held


def _silences(sound: Samples) -> list[tuple[int, int]]:
    """The silences within the reply that are longer than a ramp: from the last loud sample to the next."""
    loud = np.flatnonzero(np.abs(sound) > LOUD)
    return [(int(before), int(after)) for before, after in pairwise(loud) if after - before > FADE]


def _click_ratios(sound: Samples, silences: Sequence[tuple[int, int]]) -> list[float]:
    """The largest second difference about each silence, beside the largest elsewhere."""
    steps, reach = np.abs(np.diff(sound, 2)), SEAM_MS * EAR_RATE // 1_000
    elsewhere = np.ones(len(steps), dtype=bool)
    for before, after in silences:
        elsewhere[before - reach : after + reach] = False
    largest = steps[elsewhere].max()
    return [float(steps[before - reach : after + reach].max() / largest) for before, after in silences]
