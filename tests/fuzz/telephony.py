"""Telephony's messages, mangled: `python -m tests.fuzz.telephony --messages 2000000 [--target twilio] [--seed 1]`.

Each round, a target gets a conversation that its peer could have with it, in which messages are cut, spliced, repeated,
put out of order and bent byte by byte. `twilio`, `telnyx` and `asterisk` are the codecs: whatever comes, they give
events or a `CarrierError`. `emulated-twilio` and so on are the carriers of `loadtest`, which take whatever a service
sends, and never lose count of its sound: accepted = left + thrown away + queued. Anything else ends the run with the
seed of its round, which `--seed` plays again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from random import Random

from duplex.telephony.asterisk import Asterisk
from duplex.telephony.carrier import Carrier, CarrierError, SoundIn, Started
from duplex.telephony.inbound import Inbound
from duplex.telephony.media_streams import TELNYX, TWILIO, MediaStreams
from loadtest.carriers import stream_dialects
from loadtest.carriers.asterisk_channel import COMMANDS, AsteriskChannel, ChannelCall
from loadtest.carriers.effects import Accepted, Cleared, Complaint, Effect
from loadtest.carriers.media_stream import MediaStream
from loadtest.playout_model import Heard
from tests.fuzz.mangling import PAYLOAD, VALUES, disordered, mangled

MESSAGES = 40  # of a round
FRAME_NS = 20_000_000
STREAM = "MZ01"

_FORMATS = {
    "twilio": ("mediaFormat", {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}),
    "telnyx": ("media_format", {"encoding": "L16", "sample_rate": 16000, "channels": 1}),
}
_STREAMS = {"twilio": "streamSid", "telnyx": "stream_id"}

# ---- the codecs ----------------------------------------------------------------------------------------------


def _stream(name: str, random: Random) -> list[object]:
    (field, sound), stream = _FORMATS[name], _STREAMS[name]
    start = {"event": "start", stream: STREAM, "start": {stream: STREAM, field: dict(sound), "customParameters": {}}}
    media = {
        "track": "inbound",
        "chunk": str(random.randint(0, 9)),
        "timestamp": random.choice(VALUES),
        "payload": PAYLOAD,
    }
    others: list[object] = [
        {"event": "media", stream: STREAM, "media": media},
        {"event": "dtmf", stream: STREAM, "dtmf": {"digit": "5"}},
        {"event": "mark", stream: STREAM, "mark": {"name": "7:320"}},
        {"event": "error", "payload": {"code": 100003}},
        {"event": "stop", stream: STREAM, "stop": {}},
    ]
    return [{"event": "connected"}, start, *random.choices(others, k=MESSAGES)]


def _channel(random: Random) -> list[object]:
    start = {"event": "MEDIA_START", "format": "slin16", "optimal_frame_size": 640, "channel_variables": {"a": "b"}}
    others: list[object] = [
        {"event": "STATUS", "queue_length": random.randint(0, 9)},
        {"event": "MEDIA_MARK_PROCESSED", "correlation_id": "7:320"},
        {"event": "DTMF_END", "digit": "1"},
        {"event": "ERROR", "error_text": "no"},
        "MEDIA_XOFF channel_id:1",
        bytes(640),
    ]
    return [start, *random.choices(others, k=MESSAGES)]


def _answer(carrier: Carrier, random: Random, offset: int) -> None:
    """What the service would send meanwhile."""
    act = random.choice(["audio", "mark", "flush", "pause", "resume", "hang_up"])
    match act:
        case "audio":
            carrier.audio(7, offset, bytes(carrier.capabilities.frame_bytes))
        case "resume" | "hang_up":
            getattr(carrier, act)()
        case _:
            getattr(carrier, act)(7, offset)


def _play_codec(carrier: Carrier, messages: list[object], random: Random) -> int:
    refused, inbound = 0, None
    for at, message in enumerate(disordered(messages, random)):
        try:
            events = carrier.receive(mangled(message, random))
        except CarrierError:
            refused += 1
            continue
        for event in events:
            if isinstance(event, Started):
                inbound = Inbound(event.format, is_ordered=carrier.capabilities.is_ordered)
            elif isinstance(event, SoundIn):
                assert inbound is not None, "nothing is heard before the start"
                inbound.take(event)
        if inbound is not None:
            _answer(carrier, random, at * 160)
    return refused


# ---- the emulated carriers -----------------------------------------------------------------------------------


def _to_stream(name: str, random: Random) -> list[object]:
    stream = {_STREAMS[name]: STREAM}
    payload = "/v7+" * random.choice([1, 40, 40, 80, 160])
    others: list[object] = [
        {"event": "media", **stream, "media": {"payload": payload}},
        {"event": "mark", **stream, "mark": {"name": "7:320"}},
        {"event": "clear", **stream},
    ]
    return random.choices(others, k=MESSAGES)


def _to_channel(random: Random) -> list[object]:
    commands = [
        {"command": name, "correlation_id": "7:320", "direction": random.choice(["both", "in", "out", "up"])}
        for name in sorted(COMMANDS)
        if name != "HANGUP" or random.random() < 0.1
    ]
    sound = [bytes(random.choice([0, 1, 159, 160, 640, 65_500])) for _ in range(4)]
    return random.choices([*commands, *sound], k=MESSAGES)


def _play_emulated(core: MediaStream | AsteriskChannel, messages: list[object], random: Random) -> int:
    """Frames come in between, early and late; in the end the caller hangs up."""
    now_ns, counts = 0, Counter[type]()
    refused = _counted(counts, core.begin())
    silence = core.sound.encode(bytes(2 * core.frame_samples))
    for message in disordered(messages, random):
        refused += _counted(counts, core.receive(mangled(message, random), now_ns))
        if random.random() < 0.5:
            now_ns += random.randint(0, 2 * FRAME_NS)
            refused += _counted(counts, core.frame(silence, now_ns, random.choice([0, 0, 1_000])))
        if random.random() < 0.05:
            refused += _counted(counts, core.press("5"))
        queued = core.queued_samples if isinstance(core, MediaStream) else _queued_at_most(core)
        assert 0 <= counts[Accepted] - counts[Heard] - counts[Cleared] <= queued, "sound is lost or made up"
        if isinstance(core, MediaStream):
            assert counts[Accepted] - counts[Heard] - counts[Cleared] == queued
    _counted(counts, core.hang_up(now_ns))
    assert counts[Accepted] == counts[Heard] + counts[Cleared], "of what was queued nothing is known"
    return refused


def _queued_at_most(channel: AsteriskChannel) -> int:
    """The frame that ends buffering may be shorter than others."""
    return channel.queued_frames * channel.frame_samples


def _counted(counts: Counter[type], effects: list[Effect]) -> int:
    """Count samples by what became of them; gives how many complaints there were."""
    complaints = 0
    for effect in effects:
        match effect:
            case Accepted(pcm=pcm) | Heard(pcm=pcm):
                counts[type(effect)] += len(pcm) // 2
            case Cleared(samples=samples):
                counts[Cleared] += samples
            case Complaint():
                complaints += 1
            case _:
                pass
    return complaints


# ---- rounds --------------------------------------------------------------------------------------------------


def _emulated_stream(name: str, dialect: stream_dialects.Dialect, random: Random) -> int:
    core = MediaStream(stream_dialects.StreamCall(STREAM), dialect)
    return _play_emulated(core, _to_stream(name, random), random)


def _emulated_channel(random: Random) -> int:
    name = random.choice(["ulaw", "slin16"])
    core = AsteriskChannel(ChannelCall(format_name=name, answers=random.random() < 0.5))
    return _play_emulated(core, _to_channel(random), random)


# Each plays a round, and gives how many messages were refused.
TARGETS: dict[str, Callable[[Random], int]] = {
    "twilio": lambda random: _play_codec(MediaStreams(TWILIO), _stream("twilio", random), random),
    "telnyx": lambda random: _play_codec(MediaStreams(TELNYX), _stream("telnyx", random), random),
    "asterisk": lambda random: _play_codec(Asterisk(), _channel(random), random),
    "emulated-twilio": lambda random: _emulated_stream("twilio", stream_dialects.TWILIO, random),
    "emulated-telnyx": lambda random: _emulated_stream("telnyx", stream_dialects.TELNYX, random),
    "emulated-asterisk": _emulated_channel,
}


def play(target: str, seed: int) -> int:
    """One round; gives how many messages were refused."""
    return TARGETS[target](Random(seed))


def _run(target: str, seeds: range, seconds_max: float) -> str:
    """Rounds, until there are no more seeds or no more time; what they were."""
    began_s, refused, rounds = time.monotonic(), 0, 0
    for seed in seeds:
        if rounds and time.monotonic() - began_s >= seconds_max:
            break
        try:
            refused += play(target, seed)
        except BaseException:
            sys.stderr.write(f"{target}, --seed {seed}:\n")
            raise
        rounds += 1
    elapsed_s = time.monotonic() - began_s
    return f"{target}: {rounds * MESSAGES} messages in {rounds} rounds, {refused} refused, {elapsed_s:.0f} s"


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 where nothing went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.telephony", description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000, help="for each target")
    parser.add_argument("--seconds-max", type=float, default=600.0, help="for each target")
    parser.add_argument("--target", choices=sorted(TARGETS), action="append")
    parser.add_argument("--seed", type=int, help="play this round alone")
    asked = parser.parse_args(arguments)
    seeds = range(-(-asked.messages // MESSAGES)) if asked.seed is None else range(asked.seed, asked.seed + 1)
    for target in asked.target or sorted(TARGETS):
        sys.stdout.write(_run(target, seeds, asked.seconds_max) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
