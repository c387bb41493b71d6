from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.playout_model import NS_PER_S, QUEUE_S_MAX, AudioFrame, Faults, Heard, PlayoutModel
from tests.loadtest.link import tone

RATE = 24_000
MS = 1_000_000


def frame(
    ms: int, response_id: str = "a", *, start: int | None = None, epoch: int | None = None, silent_ms: int = 0
) -> AudioFrame:
    return AudioFrame(response_id, tone(ms - silent_ms, lead_ms=silent_ms), epoch, start)


def places(heard: list[Heard]) -> list[tuple[float, float]]:
    """Start and length in milliseconds."""
    return [(piece.start_ns / MS, len(piece.pcm) / 48) for piece in heard]


def test_a_frame_plays_on_arrival_or_behind_what_is_queued() -> None:
    model = PlayoutModel(RATE)
    model.receive(frame(40), 100 * MS)
    model.receive(frame(40), 105 * MS)
    model.receive(frame(40), 200 * MS)

    assert model.queue_end_ns == 240 * MS
    assert places(model.advance(139 * MS)) == []
    assert places(model.advance(140 * MS)) == [(100, 40)]
    rest = model.advance(300 * MS)
    assert places(rest) == [(140, 40), (200, 40)]
    assert {piece.response_id for piece in rest} == {"a"}
    audio = model.replies["a"]
    assert (audio.first_received_ns, audio.last_received_ns) == (100 * MS, 200 * MS)
    assert (audio.first_heard_ns, audio.last_heard_ns) == (100 * MS, 240 * MS)
    assert (audio.gap_ns_max, audio.dry_ns) == (95 * MS, 20 * MS)
    assert audio.received_samples == audio.heard_samples == 2_880


def test_a_jitter_buffer_makes_up_for_what_comes_late() -> None:
    model = PlayoutModel(RATE, 60 * MS)
    for at_ms in (100, 155, 160, 500):
        model.receive(frame(20), at_ms * MS)
    assert model.heard_to_sample("a", 150 * MS) == 0
    assert places(model.advance(1_000 * MS)) == [(160, 20), (180, 20), (200, 20), (560, 20)]
    assert model.replies["a"].dry_ns == 340 * MS


def test_what_waits_in_the_jitter_buffer_can_be_flushed() -> None:
    model = PlayoutModel(RATE, 60 * MS)
    model.receive(frame(20), 100 * MS)
    assert model.cut(150 * MS) == []
    assert model.replies["a"].discarded_samples == 480


def test_silence_between_two_replies_is_not_dry() -> None:
    model = PlayoutModel(RATE)
    model.receive(frame(40, "a"), 0)
    model.receive(frame(40, "b"), 500 * MS)

    assert model.replies["a"].dry_ns == model.replies["b"].dry_ns == 0
    assert model.replies["b"].gap_ns_max == 0


def test_audible_times_are_those_of_what_was_played() -> None:
    model = PlayoutModel(RATE)
    model.receive(AudioFrame("a", bytes(48 * 20)), 0)
    model.receive(frame(40, silent_ms=10), 0)
    model.receive(AudioFrame("a", bytes(48 * 20)), 0)
    model.advance(NS_PER_S)

    audio = model.replies["a"]
    assert (audio.first_audible_ns, audio.last_audible_ns) == (30 * MS, 60 * MS)
    assert audio.last_heard_ns == 80 * MS


def test_a_cut_splits_the_frame_in_play_and_drops_the_rest() -> None:
    model = PlayoutModel(RATE)
    for start in (0, 960, 1_920):
        model.receive(frame(40, start=start), 0)

    assert places(model.cut(50 * MS)) == [(0, 40), (40, 10)]
    audio = model.replies["a"]
    assert (audio.heard_samples, audio.discarded_samples) == (1_200, 1_680)
    assert (audio.last_heard_ns, audio.last_audible_ns) == (50 * MS, 50 * MS)
    assert model.heard_to_sample("a", 60 * MS) == 1_200
    assert model.queue_end_ns == 50 * MS
    assert model.advance(NS_PER_S) == []


def test_what_was_never_heard_has_no_heard_time() -> None:
    model = PlayoutModel(RATE)
    model.receive(frame(40), 0)
    model.cut(0)

    audio = model.replies["a"]
    assert (audio.first_heard_ns, audio.heard_samples, audio.discarded_samples) == (None, 0, 960)


def test_a_cut_of_one_response_spares_the_frame_of_another_in_play() -> None:
    model = PlayoutModel(RATE)
    model.receive(frame(40, "a"), 0)
    model.receive(frame(40, "b"), 0)
    model.receive(frame(40, "a"), 0)

    assert model.cut(10 * MS, "b") == []
    assert places(model.advance(NS_PER_S)) == [(0, 40), (40, 40)]
    assert model.replies["a"].first_heard_ns == 0
    assert model.replies["b"].discarded_samples == 960
    assert not model.replies["a"].ended


def test_a_cut_of_the_response_in_play_lets_another_begin_at_once() -> None:
    model = PlayoutModel(RATE)
    model.receive(frame(40, "a"), 0)
    model.receive(frame(40, "b"), 0)

    assert places(model.cut(10 * MS, "a")) == [(0, 10)]
    assert places(model.advance(NS_PER_S)) == [(10, 40)]
    assert model.replies["b"].first_heard_ns == 10 * MS


def test_the_heard_position_is_an_offset_of_the_response() -> None:
    model = PlayoutModel(RATE)
    model.receive(frame(40, start=4_800), 0)
    model.receive(frame(40, start=9_600), 0)

    assert model.heard_to_sample("a", 10 * MS) == 4_800 + 240
    model.advance(45 * MS)
    assert model.heard_to_sample("a", 45 * MS) == 9_600 + 120
    model.advance(NS_PER_S)
    assert model.heard_to_sample("a", NS_PER_S) == 9_600 + 960
    assert model.heard_to_sample("unknown", NS_PER_S) == 0


def test_audio_after_the_terminal_or_a_cut_is_stale_and_still_heard() -> None:
    model = PlayoutModel(RATE)
    model.receive(frame(40, "a"), 0)
    model.end("a")
    model.receive(frame(40, "a"), 0)
    model.receive(frame(40, "b"), 0)
    model.cut(0)
    model.receive(frame(40, "b"), 0)

    assert model.replies["a"].faults == Faults(stale_samples=960)
    assert model.replies["b"].faults == Faults(stale_samples=960)
    assert places(model.advance(NS_PER_S)) == [(0, 40)]


def test_an_epoch_never_goes_back() -> None:
    model = PlayoutModel(RATE)
    model.receive(frame(40, "a", epoch=5), 0)
    model.receive(frame(40, "b", epoch=7), 0)
    model.receive(frame(40, "b", epoch=8), 0)
    model.receive(frame(40, "a", epoch=5), 0)

    assert model.replies["b"].faults == Faults(wrong_epoch_frames=1)
    assert model.replies["a"].faults == Faults(wrong_epoch_frames=1, stale_samples=960)


def test_offsets_that_jump_and_labels_that_lie_are_faults() -> None:
    model = PlayoutModel(RATE)
    model.receive(frame(40, start=0), 0)
    model.receive(frame(40, start=1_000), 0)
    model.receive(AudioFrame("a", tone(40), start_sample=1_960, samples=959), 0)
    model.receive(AudioFrame("a", tone(40), start_sample=2_920, sample_rate=16_000), 0)

    assert model.replies["a"].faults == Faults(missing_samples=40, mislabelled_frames=2)
    assert model.replies["a"].faults.total == 42


def test_an_empty_frame_is_no_sound() -> None:
    model = PlayoutModel(RATE)
    model.receive(AudioFrame("a", b""), 5)

    assert model.replies["a"].first_received_ns is None
    assert model.advance(NS_PER_S) == []


def test_the_queue_is_bounded_and_what_does_not_fit_is_discarded() -> None:
    model = PlayoutModel(RATE)
    second = tone(1_000)
    for _ in range(QUEUE_S_MAX + 1):
        model.receive(AudioFrame("a", second), 0)
    model.receive(AudioFrame("a", tone(500)), NS_PER_S - 1)
    assert model.replies["a"].overflow_samples == 36_000

    model.advance(NS_PER_S)
    model.receive(AudioFrame("a", second), NS_PER_S)
    assert model.replies["a"].overflow_samples == model.replies["a"].discarded_samples == 36_000
    assert model.queue_end_ns == (QUEUE_S_MAX + 1) * NS_PER_S


steps = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.integers(1, 2_000),
        st.integers(0, 100 * MS),
        st.sampled_from(["receive", "receive", "receive", "cut", "cut one"]),
    ),
    max_size=30,
)


@settings(max_examples=50)
@given(steps)
def test_every_sample_is_heard_once_or_discarded_and_pieces_never_overlap(
    actions: list[tuple[str, int, int, str]],
) -> None:
    model = PlayoutModel(RATE)
    heard: list[Heard] = []
    now_ns = 0
    for response_id, samples, wait_ns, action in actions:
        now_ns += wait_ns
        heard += model.advance(now_ns)
        if action == "receive":
            model.receive(AudioFrame(response_id, b"\1\0" * samples), now_ns)
        else:
            heard += model.cut(now_ns, response_id if action == "cut one" else None)
    heard += model.advance(model.queue_end_ns)

    for audio in model.replies.values():
        assert audio.received_samples == audio.heard_samples + audio.discarded_samples
    assert sum(len(piece.pcm) // 2 for piece in heard) == sum(a.heard_samples for a in model.replies.values())
    ends = [piece.start_ns + len(piece.pcm) // 2 * NS_PER_S // RATE for piece in heard]
    # Frames of a run are placed from its start, so neighbours may differ by the rounding of one nanosecond.
    assert all(end <= following.start_ns + 1 for end, following in zip(ends, heard[1:], strict=False))
