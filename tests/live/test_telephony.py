"""Calls over emulated carriers, through real processes: what the ear has had is what history has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from duplex.telephony.line import MARK_FRAMES
from loadtest.carriers.asterisk_channel import AsteriskChannel, ChannelCall
from loadtest.carriers.media_stream import MediaStream
from loadtest.carriers.stream_dialects import TELNYX, TWILIO, WIDE, StreamCall
from media.wav import read_wav
from sessions.records import ItemRecord
from tests.live.caller import calling
from tests.live.coded import numbers, serving_words
from tests.live.phone import Core, Phone, call, items_of, speaking, telling
from tests.live.service import Service, serving

pytestmark = [pytest.mark.live, pytest.mark.slow]

WORDS = 14
QUESTION = (300, 1_000)
SPEECH = Path(__file__).parents[1] / "data" / "speech"
MARK_MS = MARK_FRAMES * 20


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving_words(tmp_path_factory.mktemp("telephony"), WORDS) as running:
        yield running


def twilio() -> Core:
    return MediaStream(StreamCall(), TWILIO)


CARRIERS = [
    pytest.param(twilio, "twilio", id="twilio"),
    pytest.param(lambda: MediaStream(StreamCall(), TELNYX), "telnyx", id="telnyx"),
    pytest.param(lambda: MediaStream(StreamCall(), TELNYX, WIDE), "telnyx", id="telnyx-l16"),
    *(
        pytest.param(
            lambda name=name: AsteriskChannel(ChannelCall(format_name=name)), "asterisk", id=f"asterisk-{name}"
        )
        for name in ("ulaw", "alaw", "slin", "slin16")
    ),
]


def session_of(service: Service, since: int) -> str:
    session: str = service.wait_for_event("phone_call_began", since=since)["session"]
    return session


def replies(items: list[ItemRecord]) -> list[ItemRecord]:
    return [item for item in items if item.role == "assistant"]


@pytest.mark.parametrize(("core", "name"), CARRIERS)
def test_an_interrupted_reply_is_history_up_to_what_was_heard(
    service: Service, core: Callable[[], Core], name: str
) -> None:
    since = len(service.lines)
    phone = Phone(core(), speaking(QUESTION, (3_000, 4_200)))
    call(f"ws://{service.address}/v1/telephony/{name}", phone, lambda: phone.said_ms >= 6_500)
    first, second = replies(items_of(service, session_of(service, since)))
    responses = list(dict.fromkeys(word.response for word in phone.words))
    heard = [word for word in phone.words if word.response == responses[0]]
    whole = [word.word for word in heard if word.whole]
    assert whole == list(range(len(whole))), "in order, each once"
    said = numbers(first.content.split())
    assert len(whole) - 1 <= len(said) <= len(whole), "history errs low, and by no more than a mark"
    assert (first.truncated, first.heard_basis) == (True, "mark")
    assert numbers(second.content.split())[:3] == [0, 1, 2]
    assert not phone.complaints
    cleared_at, _ = phone.cleared[0]
    rate = phone.core.sound.sample_rate
    ear_ms = cleared_at * 1_000 // rate
    assert ear_ms - MARK_MS - 60 <= first.audio_ms_cut <= ear_ms
    after = [word for word in phone.words if word.start_sample * rate // 24_000 >= cleared_at]
    assert {word.response for word in after} == {responses[1]}, "nothing of it is heard behind the clear"


def test_a_whole_reply_is_heard_whole(service: Service) -> None:
    since = len(service.lines)
    phone = Phone(twilio(), speaking(QUESTION))
    call(
        f"ws://{service.address}/v1/telephony/twilio",
        phone,
        lambda: phone.loud_ms >= WORDS * 200 - 100 and phone.said_ms > 5_000,
    )
    (reply,) = replies(items_of(service, session_of(service, since)))
    assert numbers(reply.content.split()) == list(range(WORDS))
    assert all(word.whole and not word.repeated_samples for word in phone.words)


def test_a_call_that_rings_is_answered(service: Service) -> None:
    phone = Phone(AsteriskChannel(ChannelCall(answers=False)), speaking(QUESTION))
    call(f"ws://{service.address}/v1/telephony/asterisk", phone, lambda: phone.loud_ms >= 400)
    assert phone.loud_ms >= 400
    assert not phone.complaints


def test_a_key_ends_what_is_said_and_is_answered(service: Service) -> None:
    since = len(service.lines)
    phone = Phone(twilio(), speaking(QUESTION), keys=[(2_800, "4"), (2_900, "2"), (3_000, "#")])
    call(f"ws://{service.address}/v1/telephony/twilio", phone, lambda: phone.said_ms >= 6_500)
    _, first, pressed, *_ = items_of(service, session_of(service, since))
    assert service.wait_for_event("response_ended", since=since, reason="dtmf")["status"] == "cancelled"
    assert first.truncated
    assert (pressed.role, "4 2" in pressed.content) == ("user", True)
    cleared_at, _ = phone.cleared[0]
    rate = phone.core.sound.sample_rate
    ended = phone.words[0].response
    after = {word.response for word in phone.words if word.start_sample * rate // 24_000 >= cleared_at}
    assert ended not in after, "the carrier plays none of it any more"
    assert after


def test_a_second_connection_sees_the_call_and_cannot_change_its_sound(service: Service) -> None:
    since = len(service.lines)
    over = threading.Event()
    phone = Phone(twilio(), speaking(QUESTION))
    url = f"ws://{service.address}/v1/telephony/twilio"
    line = threading.Thread(target=call, args=(url, phone, over.is_set))
    line.start()
    try:
        with calling(service, query=f"?extensions=1&call_id={session_of(service, since)}") as aside:
            format_asked = {"audio": {"output": {"format": {"type": "audio/pcma"}}}}
            aside.send("session.update", session={"type": "realtime", **format_asked})
            assert aside.until("error")["error"]["code"] == "unsupported_format"
            aside.settle(instructions="Be brief.")
            aside.until("response.done")
    finally:
        over.set()
        line.join()
    assert phone.words


@pytest.mark.parametrize(("core", "name"), [CARRIERS[0], CARRIERS[-1]])
def test_a_murmur_holds_a_reply_and_nothing_of_it_is_lost_or_said_twice(
    service: Service, core: Callable[[], Core], name: str
) -> None:
    since, holds = len(service.lines), service.metric("duplex_hold_seconds_count")
    phone = Phone(core(), speaking(QUESTION, (2_800, 3_050)))
    call(f"ws://{service.address}/v1/telephony/{name}", phone, lambda: phone.said_ms >= 6_500)
    assert service.metric("duplex_hold_seconds_count") == holds + 1
    words = [word for word in phone.words if word.response == phone.words[0].response]
    assert [word.word for word in words if word.whole and not word.repeated_samples] == list(range(WORDS))
    reply, *_ = replies(items_of(service, session_of(service, since)))
    assert (numbers(reply.content.split()), reply.truncated) == (list(range(WORDS)), False)


@pytest.mark.models
@pytest.mark.parametrize(("core", "name"), [CARRIERS[0], CARRIERS[-1]])
def test_a_question_over_a_telephone_is_understood_and_answered_with_real_models(
    tmp_path: Path, core: Callable[[], Core], name: str
) -> None:
    carrier = core()
    phone = Phone(carrier, telling(read_wav(SPEECH / "capital.wav", carrier.sound.sample_rate), at_ms=3_000))
    with serving(tmp_path / "data", {"phone_greeting": "Hello."}, engine="local") as service:
        call(f"ws://{service.address}/v1/telephony/{name}", phone, lambda: phone.said_ms >= 14_000)
        items = items_of(service, session_of(service, 0))
    greeting, asked, answer, *_ = items
    assert (greeting.role, greeting.content) == ("assistant", "Hello.")
    assert (asked.role, "capital" in asked.content.lower()) == ("user", True)
    assert (answer.role, bool(answer.content)) == ("assistant", True)
    assert phone.loud_ms > greeting.audio_ms_total
    assert not phone.complaints
