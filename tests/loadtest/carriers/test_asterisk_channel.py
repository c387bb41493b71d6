"""The core of Asterisk's WebSocket channel, tick by tick."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.carriers.asterisk_channel import (
    BACKLOG_MAX,
    FRAME_MS,
    FRAME_NS,
    MESSAGE_BYTES_MAX,
    SOUNDS,
    TEXT_BYTES_MAX,
    AsteriskChannel,
    ChannelCall,
    Phase,
    Step,
)
from loadtest.carriers.effects import Accepted, Cleared, Complaint, Effect, HungUp, Send
from loadtest.carriers.frame_queue import LENGTH_MAX, NOTICES_MAX, XOFF_LEVEL, XON_LEVEL
from loadtest.carriers.unruly_line import Fault
from loadtest.playout_model import Heard

FRAME = b"\x80" * 160
SILENCE = b"\xff" * 160


class Switch:
    """A channel that is up, and what came of it."""

    def __init__(self, call: ChannelCall | None = None) -> None:
        self.channel = AsteriskChannel(call or ChannelCall())
        self.effects: list[Effect] = self.channel.begin()
        self.ticks = 0

    def say(self, sound: bytes) -> list[Effect]:
        return self.add(self.channel.receive(sound, 0))

    def command(self, command: str, **fields: str) -> list[Effect]:
        return self.add(self.channel.receive(json.dumps({"command": command} | fields), 0))

    def tick(self, times: int = 1, backlog: int = 0) -> list[Effect]:
        effects: list[Effect] = []
        for _ in range(times):
            self.ticks += 1
            effects += self.add(self.channel.frame(SILENCE, self.ticks * FRAME_NS, backlog))
        return effects

    def add(self, effects: list[Effect]) -> list[Effect]:
        self.effects += effects
        return effects

    def samples(self, kind: type[Accepted | Heard]) -> int:
        return sum(len(effect.pcm) // 2 for effect in self.effects if isinstance(effect, kind))

    @property
    def samples_cleared(self) -> int:
        return sum(effect.samples for effect in self.effects if isinstance(effect, Cleared))


def events(effects: list[Effect]) -> list[dict[str, Any]]:
    return [json.loads(one.message) for one in effects if isinstance(one, Send) and isinstance(one.message, str)]


def names(effects: list[Effect]) -> list[str]:
    return [event["event"] for event in events(effects)]


def marks(effects: list[Effect]) -> list[str]:
    return [event["correlation_id"] for event in events(effects) if "correlation_id" in event]


def heard(effects: list[Effect]) -> list[tuple[int, int]]:
    """The tick and the samples of each frame."""
    return [(effect.start_ns // FRAME_NS, len(effect.pcm) // 2) for effect in effects if isinstance(effect, Heard)]


@pytest.mark.parametrize(("name", "frame_bytes"), [("ulaw", 160), ("alaw", 160), ("slin", 320), ("slin16", 640)])
def test_the_call_begins_with_its_format(name: str, frame_bytes: int) -> None:
    (start,) = events(Switch(ChannelCall("c1", "pbx-1", name, {"CALLER": "100"})).effects)
    assert start == {
        "event": "MEDIA_START",
        "channel_id": "pbx-1",
        "connection_id": "c1",
        "channel": "WebSocket/c1",
        "format": name,
        "optimal_frame_size": frame_bytes,
        "ptime": FRAME_MS,
        "channel_variables": {"CALLER": "100"},
    }
    assert set(SOUNDS) == {"ulaw", "alaw", "slin", "slin16"}


def test_each_tick_sends_what_the_caller_says_and_takes_one_frame() -> None:
    switch = Switch()
    assert [type(effect) for effect in switch.say(FRAME * 2)] == [Accepted]
    effects = switch.tick(3)
    assert heard(effects) == [(1, 160), (2, 160)]
    assert [effect for effect in effects if isinstance(effect, Send)] == [Send(SILENCE, is_sound=True)] * 3


def test_ticks_count_however_late_they_come() -> None:
    channel = AsteriskChannel(ChannelCall())
    channel.begin()
    channel.receive(FRAME * 3, 0)
    effects = [effect for now_ns in (5, 31, 22) for effect in channel.frame(SILENCE, now_ns * 1_000_000)]
    assert [one.start_ns // 1_000_000 for one in effects if isinstance(one, Heard)] == [5, 25, 45]


def test_what_is_no_whole_frame_is_dropped() -> None:
    switch = Switch()
    assert switch.say(FRAME[:-1]) == [Complaint("", "the rest of a message that is no frame")]
    switch.say(FRAME + FRAME[:80])
    assert (switch.samples(Accepted), switch.channel.queued_frames) == (160, 1)
    assert switch.channel.ignored.total() == 2


def test_bolna_773_buffering_joins_messages_and_completes_behind_the_rest() -> None:
    switch = Switch()
    switch.command("START_MEDIA_BUFFERING")
    switch.say(FRAME[:100])
    switch.say(FRAME[:100])
    assert (switch.channel.queued_frames, heard(switch.tick(2))) == (1, [(1, 160)])
    switch.command("STOP_MEDIA_BUFFERING", correlation_id="all")
    effects = switch.tick()
    assert (heard(effects), marks(effects)) == ([(3, 40)], [])
    assert events(switch.tick())[0] == {
        "event": "MEDIA_BUFFERING_COMPLETED",
        "channel_id": "pbx-17.4",
        "correlation_id": "all",
    }


def test_buffering_without_a_rest_completes_at_once_and_cannot_be_nested() -> None:
    switch = Switch(ChannelCall(format_name="slin"))
    assert names(switch.command("STOP_MEDIA_BUFFERING")) == ["ERROR"]
    switch.command("START_MEDIA_BUFFERING")
    assert names(switch.command("START_MEDIA_BUFFERING")) == ["ERROR"]
    switch.say(bytes(321))
    switch.command("STOP_MEDIA_BUFFERING")
    assert (heard(switch.tick()), marks(switch.tick())) == ([(1, 160)], [""])


def test_asterisk_1577_a_mark_is_processed_in_the_tick_that_takes_the_next_frame() -> None:
    switch = Switch()
    switch.say(FRAME)
    switch.command("MARK_MEDIA", correlation_id="a")
    switch.command("MARK_MEDIA", correlation_id="b")
    switch.say(FRAME)
    assert marks(switch.tick()) == []
    effects = switch.tick()
    assert (marks(effects), heard(effects)) == (["a", "b"], [(2, 160)])


def test_a_flush_drops_sound_marks_and_completions_silently_and_ends_buffering_but_no_pause() -> None:
    switch = Switch()
    switch.say(FRAME * 3)
    switch.command("START_MEDIA_BUFFERING")
    switch.say(FRAME[:80])
    switch.command("MARK_MEDIA", correlation_id="a")
    switch.command("PAUSE_MEDIA")
    assert switch.command("FLUSH_MEDIA") == [Cleared(480, ("a",))]
    (status,) = events(switch.command("GET_STATUS"))
    assert (status["queue_length"], status["bulk_media"], status["media_paused"]) == (0, False, True)
    switch.say(FRAME)
    assert heard(switch.tick(3)) == []
    switch.command("CONTINUE_MEDIA")
    effects = switch.tick(2)
    assert (heard(effects), marks(effects)) == ([(4, 160)], [])


def test_a_pause_keeps_marks_and_reports_back() -> None:
    switch = Switch()
    switch.command("REPORT_QUEUE_DRAINED")
    switch.command("MARK_MEDIA", correlation_id="a")
    switch.command("PAUSE_MEDIA")
    assert names(switch.tick(2)) == []
    switch.command("CONTINUE_MEDIA")
    assert names(switch.tick()) == ["MEDIA_MARK_PROCESSED", "QUEUE_DRAINED"]
    assert names(switch.tick()) == []


def test_the_exact_watermark_at_a_barge_in() -> None:
    switch = Switch()
    switch.say(FRAME * 50)
    switch.tick(13)
    (status,) = events(switch.command("PAUSE_MEDIA") + switch.command("GET_STATUS"))
    assert 50 - status["queue_length"] == 13
    assert switch.command("FLUSH_MEDIA") == [Cleared(37 * 160, ())]


def test_asterisk_2115_a_burst_stays_as_delay_and_the_levels_tell_of_it() -> None:
    switch = Switch()
    for _ in range(3):
        switch.say(FRAME * 400)
    assert names(switch.effects).count("MEDIA_XOFF") == 1
    assert switch.channel.queued_frames == 1200
    assert switch.say(FRAME) == [Complaint("", "sound for a full queue")]
    (status,) = events(switch.command("GET_STATUS"))
    assert status == {
        "event": "STATUS",
        "channel_id": "pbx-17.4",
        "queue_length": 1200,
        "xon_level": XON_LEVEL,
        "xoff_level": XOFF_LEVEL,
        "queue_full": True,
        "bulk_media": False,
        "media_paused": False,
    }
    switch.tick(1200 - LENGTH_MAX + 1)
    assert switch.say(FRAME) != []
    assert names(switch.tick(200)) == []
    assert names(switch.tick()) == ["MEDIA_XON"]


def test_xon_after_a_flush_comes_with_the_next_tick_that_is_not_paused() -> None:
    switch = Switch()
    for _ in range(3):
        switch.say(FRAME * 300)
    switch.command("PAUSE_MEDIA")
    switch.command("FLUSH_MEDIA")
    assert names(switch.tick()) == []
    switch.command("CONTINUE_MEDIA")
    assert names(switch.tick()) == ["MEDIA_XON"]


def test_a_call_that_the_switch_does_not_answer() -> None:
    switch = Switch(ChannelCall(answers=False))
    assert switch.tick() == switch.channel.press("1") == []
    assert switch.command("ANSWER") == switch.command("ANSWER") == []
    assert len(switch.tick()) == 1


def test_keys() -> None:
    assert events(Switch().channel.press("#")) == [{"event": "DTMF_END", "channel_id": "pbx-17.4", "digit": "#"}]


def test_sound_goes_the_ways_that_the_service_asks_for() -> None:
    switch = Switch()
    switch.command("SET_MEDIA_DIRECTION", direction="in")
    assert switch.say(FRAME) == [Complaint("", "sound of a service that only listens")]
    assert names(switch.command("MARK_MEDIA", correlation_id="a")) == ["ERROR"]
    assert names(switch.command("GET_STATUS")) == ["STATUS"]
    switch.command("SET_MEDIA_DIRECTION", direction="out")
    switch.say(FRAME)
    effects = switch.tick()
    assert heard(effects) == [(1, 160)]
    assert not [effect for effect in effects if isinstance(effect, Send)]
    assert names(switch.command("SET_MEDIA_DIRECTION", direction="up")) == ["ERROR"]
    switch.command("SET_MEDIA_DIRECTION", direction="both")
    assert len(switch.tick()) == 1


@pytest.mark.parametrize(
    "text",
    [
        '{"command": "MARK_MEDIA", "correlation_id": "' + "x" * TEXT_BYTES_MAX + '"}',
        '{"command": "MARK_MEDIA", "correlation_id": "' + "é" * 50 + '"}',
        '{"command": "get_status"}',
        '{"command": 1}',
        "GET_STATUS",
        "\ud800",
        "",
    ],
)
def test_commands_that_are_too_long_or_unknown_are_ignored_without_a_word(text: str) -> None:
    switch = Switch()
    (complaint,) = switch.channel.receive(text, 0)
    assert isinstance(complaint, Complaint)
    assert switch.channel.receive(text, 0) == []
    assert names(switch.tick()) == []


def test_correlation_ids_up_to_the_documented_length_fit() -> None:
    switch = Switch()
    compact = '{"command":"MARK_MEDIA","correlation_id":"' + "x" * 84 + '"}'
    assert len(compact) == TEXT_BYTES_MAX
    switch.channel.receive(compact, 0)
    assert marks(switch.tick()) == ["x" * 84]


def test_marks_that_wait_are_bounded() -> None:
    switch = Switch()
    for _ in range(NOTICES_MAX):
        assert switch.command("MARK_MEDIA") == []
    assert switch.command("MARK_MEDIA") == [Complaint("", "more marks than can be queued")]


def test_both_sides_can_hang_up() -> None:
    switch = Switch()
    switch.say(FRAME * 2)
    assert switch.command("HANGUP") == [Cleared(320, ()), HungUp("the service hung up")]
    assert switch.channel.is_over
    assert switch.tick() == switch.channel.hang_up(0) == []
    assert switch.say(FRAME) == [], "it was on its way"
    assert Switch().channel.hang_up(0) == [Cleared(0, ()), HungUp("the caller hung up")]


def test_a_message_that_is_too_long_ends_the_call() -> None:
    switch = Switch(ChannelCall(format_name="slin16"))
    assert isinstance(switch.say(bytes(MESSAGE_BYTES_MAX))[0], Accepted)
    effects = switch.say(bytes(MESSAGE_BYTES_MAX + 1))
    assert effects[0] == Complaint("", "a message of more than 65500 bytes")
    assert effects[-1] == HungUp("a message was too long")


def test_nothing_is_taken_before_the_call() -> None:
    channel = AsteriskChannel(ChannelCall())
    assert channel.receive(FRAME, 0) == [Complaint("", "a message before the call")]
    assert channel.press("1") == []
    assert channel.queued_frames == 0
    with pytest.raises(AssertionError, match=f"{Step.ANSWER} in {Phase.NEW}"):
        channel._step(Step.ANSWER)


def test_a_service_that_does_not_read_misses_sound() -> None:
    switch = Switch()
    assert len(switch.tick(backlog=BACKLOG_MAX - 1)) == 1
    assert switch.tick(2, BACKLOG_MAX) == [Complaint("", "sound for a service that does not read")]
    assert switch.channel.ignored.total() == 2


def test_forgeries_are_what_they_are_called() -> None:
    forgeries = AsteriskChannel(ChannelCall()).forgeries
    assert len(forgeries[Fault.OVERSIZED]) > 64 << 10
    with pytest.raises(json.JSONDecodeError):
        json.loads(forgeries[Fault.MALFORMED])


COMMANDS = st.sampled_from(
    [
        *("START_MEDIA_BUFFERING", "STOP_MEDIA_BUFFERING", "FLUSH_MEDIA", "PAUSE_MEDIA", "CONTINUE_MEDIA"),
        *("REPORT_QUEUE_DRAINED", "GET_STATUS"),
    ]
)


@settings(max_examples=60)
@given(st.lists(st.just("tick") | st.just("mark") | COMMANDS | st.binary(max_size=500), max_size=40))
def test_samples_are_conserved_and_marks_come_at_most_once_and_in_order(acts: list[str | bytes]) -> None:
    switch, marked, flushed = Switch(), 0, set[str]()
    for act in acts:
        if act == "tick":
            switch.tick()
        elif act == "mark":
            switch.command("MARK_MEDIA", correlation_id=str(marked))
            marked += 1
        elif isinstance(act, bytes):
            switch.say(act)
        else:
            effects = switch.command(act)
            flushed |= {name for effect in effects if isinstance(effect, Cleared) for name in effect.marks if name}
        assert switch.channel.queued_frames <= LENGTH_MAX
    left = switch.samples(Accepted) - switch.samples(Heard) - switch.samples_cleared
    assert 0 <= left <= switch.channel.queued_frames * 160
    switch.command("CONTINUE_MEDIA")
    switch.tick(switch.channel.queued_frames + 1)

    assert switch.samples(Accepted) == switch.samples(Heard) + switch.samples_cleared
    kept = [str(number) for number in range(marked) if str(number) not in flushed]
    assert [name for name in marks(switch.effects) if name] == kept
    ticks = [tick for tick, _samples in heard(switch.effects)]
    assert ticks == sorted(set(ticks))


@settings(max_examples=100)
@given(
    st.lists(
        st.binary(max_size=400)
        | st.text(max_size=140)
        | st.dictionaries(
            st.sampled_from(["command", "correlation_id", "direction"]),
            st.sampled_from(["MARK_MEDIA", "SET_MEDIA_DIRECTION", "HANGUP", "in", "out"]) | st.none() | st.integers(),
        ).map(json.dumps),
        max_size=12,
    )
)
def test_nothing_that_a_service_sends_breaks_it(messages: list[str | bytes]) -> None:
    switch = Switch()
    for message in messages:
        switch.add(switch.channel.receive(message, 0))
        switch.tick()
    switch.add(switch.channel.hang_up(0))
    assert switch.samples(Accepted) == switch.samples(Heard) + switch.samples_cleared
