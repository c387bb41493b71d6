"""Carriers' messages, mangled: `python -m tests.fuzz.telephony --seconds 60 [--codec twilio] [--seed 1]`.

Each round, a carrier's codec gets a conversation that a carrier could have with it, in which messages are cut, spliced,
repeated, put out of order and bent byte by byte. Whatever comes, it gives events or a `CarrierError`; anything else
ends the run with the seed of its round, which `--seed` plays again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from random import Random

from duplex.telephony.asterisk import Asterisk
from duplex.telephony.carrier import Carrier, CarrierError, Message, SoundIn, Started
from duplex.telephony.inbound import Inbound
from duplex.telephony.media_streams import TELNYX, TWILIO, MediaStreams

MESSAGES = 40
PAYLOAD = "/v7+/v7+"
TEXTS = [
    "",
    "0",
    "-1",
    "1:160",
    "7:320",
    "9" * 40,
    "\x00",
    "\ud800",
    "inbound",
    "outbound",
    PAYLOAD,
    "#",
    "slin16",
    "ulaw",
]
VALUES: list[object] = [*TEXTS, None, True, 0, -1, 1 << 70, 1.5, [], {}, [[]], {"a": {}}]

_FORMATS = {
    "twilio": ("mediaFormat", {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}),
    "telnyx": ("media_format", {"encoding": "L16", "sample_rate": 16000, "channels": 1}),
}


def _stream(name: str, random: Random) -> list[object]:
    field, sound = _FORMATS[name]
    stream = "streamSid" if name == "twilio" else "stream_id"
    start = {"event": "start", stream: "MZ01", "start": {stream: "MZ01", field: dict(sound), "customParameters": {}}}
    media = {
        "track": "inbound",
        "chunk": str(random.randint(0, 9)),
        "timestamp": random.choice(VALUES),
        "payload": PAYLOAD,
    }
    others: list[object] = [
        {"event": "media", stream: "MZ01", "media": media},
        {"event": "dtmf", stream: "MZ01", "dtmf": {"digit": "5"}},
        {"event": "mark", stream: "MZ01", "mark": {"name": "7:320"}},
        {"event": "error", "payload": {"code": 100003}},
        {"event": "stop", stream: "MZ01", "stop": {}},
    ]
    return [{"event": "connected"}, start, *(random.choice(others) for _ in range(MESSAGES))]


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
    return [start, *(random.choice(others) for _ in range(MESSAGES))]


def _mangled(message: object, random: Random) -> Message:
    if isinstance(message, dict) and random.random() < 0.3:
        message = deepcopy(message)
        _bend(message, random)
    text = message if isinstance(message, str | bytes) else json.dumps(message)
    data = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
    if random.random() < 0.2:
        data = data[: random.randint(0, len(data))] + data[random.randint(0, len(data)) :]
    is_text = isinstance(text, str) is not (random.random() < 0.05)
    return data.decode(errors="surrogateescape") if is_text else data


def _bend(fields: dict[str, object], random: Random) -> None:
    name = random.choice([*fields, "event", "payload"])
    inner = fields.get(name)
    if isinstance(inner, dict) and inner and random.random() < 0.7:
        _bend(inner, random)
    else:
        fields[name] = deepcopy(random.choice(VALUES))


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


CODECS: dict[str, tuple[Callable[[], Carrier], Callable[[Random], list[object]]]] = {
    "twilio": (lambda: MediaStreams(TWILIO), lambda random: _stream("twilio", random)),
    "telnyx": (lambda: MediaStreams(TELNYX), lambda random: _stream("telnyx", random)),
    "asterisk": (Asterisk, _channel),
}


def play(codec: str, seed: int) -> int:
    """One round; gives how many messages were refused."""
    random, refused, inbound = Random(seed), 0, None
    make, script = CODECS[codec]
    carrier = make()
    messages = script(random)
    if random.random() < 0.2:
        random.shuffle(messages)
    for at, message in enumerate(messages):
        try:
            events = carrier.receive(_mangled(message, random))
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


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 where nothing went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.telephony", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--codec", choices=sorted(CODECS), action="append")
    parser.add_argument("--seed", type=int, help="play this round alone")
    asked = parser.parse_args(arguments)
    codecs, rounds, refused = asked.codec or sorted(CODECS), 0, 0
    until_s = time.monotonic() + asked.seconds
    while rounds == 0 or (asked.seed is None and time.monotonic() < until_s):
        seed = rounds if asked.seed is None else asked.seed
        for codec in codecs:
            try:
                refused += play(codec, seed)
            except BaseException:
                sys.stderr.write(f"{codec}, --seed {seed}:\n")
                raise
        rounds += 1
    sys.stdout.write(f"{rounds} rounds of {', '.join(codecs)}; {refused} messages were refused\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
