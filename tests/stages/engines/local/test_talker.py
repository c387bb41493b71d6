from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.contracts import Clause, Latents, Options, Pause, Tag, TalkerOptions, VocoderOptions, Word, WordTimes
from stages.engines.local.acoustics import Acoustics
from stages.engines.local.talker import (
    CLAUSE_CHARS_MAX,
    CLAUSES_WAITING_MAX,
    ITEM_BYTES_MAX,
    LEAD_MS_FIRST_MAX,
    LEAD_MS_MAX,
    TAIL_MS_COMMA_MAX,
    TAIL_MS_CUT_MAX,
    TAIL_MS_SENTENCE_MAX,
    TalkerModel,
    TalkerStream,
)
from stages.engines.local.voice import ITEM_FRAMES_MAX
from stages.stream import Consumed, Emit, Publish, StageFailure
from tests.stages.engines.local.real_voice import real_acoustics, real_decoder
from tests.stages.engines.local.tiny_voice import CHANNELS, HOP, SAMPLE_RATE
from tests.stages.engines.local.voice_bench import (
    FakeAcousticSession,
    FakeSpeaker,
    consumed_of,
    drive,
    fake_acoustics,
    frames_of,
    latents_of,
    run_step,
    word_times_of,
)

TAG = Tag("s", 1, 1, "r")
MS_FRAMES = SAMPLE_RATE // 1000 // HOP  # frames in a millisecond of the tiny voice


def _stream(session: FakeAcousticSession | None = None, speaker: FakeSpeaker | None = None) -> TalkerStream:
    return TalkerStream(fake_acoustics(session or FakeAcousticSession(), speaker), TalkerOptions())


def _model(acoustics: Acoustics) -> TalkerModel:
    return TalkerModel([Path("joe.onnx")], Path("cache"), lambda voice, cache: acoustics)


def clauses(*texts: str) -> list[Clause]:
    return [Clause(number, text, number == len(texts) - 1) for number, text in enumerate(texts)]


# ---- what comes out ---------------------------------------------------------------------------------------


def test_a_clause_is_word_times_then_latents_then_credit() -> None:
    outputs = drive(_stream(), clauses("ab c."))
    kinds = [type(output) for output in outputs]
    assert kinds == [Publish, Emit, Consumed]
    # ^ _ a _ b _ ' ' _ c _ . _ $: one frame each.
    assert word_times_of(outputs) == [
        WordTimes(0, SAMPLE_RATE, (Word("ab", 2 * HOP, 6 * HOP), Word("c.", 8 * HOP, 10 * HOP)))
    ]
    (item,) = latents_of(outputs)
    assert (item.start_frame, item.frames, item.clause_end, item.final) == (0, 13, True, True)
    assert frames_of([item])[:, 0].tolist() == list(range(13))
    assert consumed_of(outputs) == [len("ab c.")]


def test_latents_come_in_pieces_that_fit_a_frame_of_the_link() -> None:
    outputs = drive(_stream(), clauses("abcdefghij klmnop.", "q."))
    items = latents_of(outputs)
    assert [item.frames for item in items] == [16, 16, 7, 7]
    assert [item.clause_end for item in items] == [False, False, True, True]
    assert all(item.frames <= ITEM_FRAMES_MAX and len(item.data) <= ITEM_BYTES_MAX for item in items)
    emitted = [output.units for output in outputs if isinstance(output, Emit)]
    assert emitted == [item.frames for item in items]
    assert len(frames_of(items)) == 46


def test_wide_latents_come_in_shorter_pieces() -> None:
    class Wide(FakeAcousticSession):
        def run(
            self, output_names: object, input_feed: object
        ) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
            latents, durations = super().run(None, input_feed)  # type: ignore[arg-type]
            return [np.repeat(latents, 256, axis=1), durations]

    items = latents_of(drive(_stream(Wide()), clauses("abcdef.")))
    assert [item.frames for item in items] == [5, 5, 5, 2]


def test_the_clock_runs_on_over_clauses() -> None:
    outputs = drive(_stream(), clauses("ab,", "cd."))
    first, second = word_times_of(outputs)
    assert (first.clause, second.clause) == (0, 1)
    assert first.words == (Word("ab,", 2 * HOP, 6 * HOP),)
    assert second.words == (Word("cd.", (9 + 2) * HOP, (9 + 6) * HOP),)
    frames_of(latents_of(outputs))


@pytest.mark.parametrize("text", ["", "\N{GRINNING FACE}"])
def test_a_silent_final_clause_ends_the_latents(text: str) -> None:
    outputs = drive(_stream(), clauses("ab.", text))
    assert latents_of(outputs)[-1] == Latents(9, 0, b"", final=True)
    assert word_times_of(outputs)[1:] == ([WordTimes(1, SAMPLE_RATE, (Word(text, 72, 72),))] if text else [])
    assert consumed_of(outputs) == [3, 1]


def test_a_silent_clause_amid_others_only_gives_credit_back() -> None:
    outputs = drive(_stream(), clauses("", "ab."))
    assert consumed_of(outputs) == [1, 3]
    assert len(latents_of(outputs)) == 1


def test_a_long_clause_is_said_in_several_steps() -> None:
    session = FakeAcousticSession()
    stream = _stream(session)
    text = "abcdefgh ijklmnop " * 12
    outputs = drive(stream, clauses(text))
    times = word_times_of(outputs)
    assert len(session.texts) == len(times) == 3
    assert {event.clause for event in times} == {0}
    words = [word for event in times for word in event.words]
    assert [word.text for word in words] == text.split()
    items = latents_of(outputs)
    assert [item.clause_end for item in items] == [False] * (len(items) - 1) + [True]
    assert words[-1].end <= len(frames_of(items)) * HOP
    assert consumed_of(outputs) == [len(text)]


def test_a_word_cut_between_steps_is_published_where_it_ends() -> None:
    session = FakeAcousticSession()
    stream = TalkerStream(fake_acoustics(session), TalkerOptions(speed=0.25))
    outputs = drive(stream, clauses(f"a {'b' * 40} c."))
    frames = [len(text) for text in session.texts]
    first, second = word_times_of(outputs)
    assert frames[0] == len("^_a_$")
    assert [word.text for word in first.words + second.words] == ["a", "b" * 40, "c."]
    assert second.words[0].start == (frames[0] + 2) * HOP
    assert second.words[0].end > (frames[0] + frames[1]) * HOP


def test_the_speaker_may_ask_to_be_called_again() -> None:
    stream = _stream(speaker=FakeSpeaker(busy=2))
    stream.feed(Clause(0, "ab.", final=True))
    for _ in range(2):
        step = stream.next_step()
        assert step is not None
        assert run_step(stream, step) == ()
    assert not stream.finished
    assert len(drive(stream, [])) == 0
    step = stream.next_step()
    assert step is not None
    assert latents_of(run_step(stream, step))[-1].final
    assert stream.finished


def test_symbols_that_the_voice_lacks_are_counted_once() -> None:
    stream = _stream()
    drive(stream, clauses("aéb é.", "é" * 3))
    assert stream.unknown_symbols == 5


# ---- silence ----------------------------------------------------------------------------------------------


def _pauses(symbol: str, place: int) -> int:
    """100 ms for the start, 300 for each mark and the end; 10 for a sound."""
    if symbol == "_":
        return 0
    return {"^": 100, ".": 300, ",": 300, "$": 300}.get(symbol, 10) * MS_FRAMES


def test_silence_is_trimmed_to_what_its_place_asks_for() -> None:
    outputs = drive(_stream(FakeAcousticSession(_pauses)), clauses("a,", "b.", "c", "d."))
    words = [event.words[0] for event in word_times_of(outputs)]
    ends = [item.start_frame + item.frames for item in latents_of(outputs) if item.clause_end]
    starts = [0, *ends[:-1]]
    lead_ms = [(word.start // HOP - start) / MS_FRAMES for word, start in zip(words, starts, strict=True)]
    tail_ms = [(end - word.end // HOP) / MS_FRAMES for word, end in zip(words, ends, strict=True)]
    assert lead_ms == [LEAD_MS_FIRST_MAX, LEAD_MS_MAX, LEAD_MS_MAX, LEAD_MS_FIRST_MAX]
    assert tail_ms == [TAIL_MS_COMMA_MAX, TAIL_MS_SENTENCE_MAX, TAIL_MS_CUT_MAX, TAIL_MS_SENTENCE_MAX]
    kept = frames_of(latents_of(outputs))[:, 0]
    assert kept[0] == (100 - LEAD_MS_FIRST_MAX) * MS_FRAMES


def test_short_silence_is_kept() -> None:
    outputs = drive(_stream(), clauses("a."))
    assert len(frames_of(latents_of(outputs))) == len("^_a_._$")


# ---- order, options, limits -------------------------------------------------------------------------------


def test_the_first_clause_is_urgent() -> None:
    stream = _stream()
    for clause in clauses("a,", "b."):
        stream.feed(clause)
    urgencies = []
    while (step := stream.next_step()) is not None:
        urgencies.append((step.urgency, step.units, step.kind))
        run_step(stream, step)
    assert urgencies == [(0, 0, "acoustic"), (1, 0, "acoustic")]


def test_what_is_held_is_the_text_not_yet_said() -> None:
    stream = _stream()
    stream.feed(Clause(0, "abc,"))
    stream.feed(Clause(1, ""))
    assert stream.held() == {"characters": 5}
    step = stream.next_step()
    assert step is not None
    run_step(stream, step)
    assert stream.held() == {"characters": 1}
    stream.close()
    assert stream.held() == {"characters": 0}
    assert stream.next_step() is None


@pytest.mark.parametrize(
    ("items", "code"),
    [
        ([Pause(0)], "wrong_item"),
        ([Clause(1, "b")], "wrong_item"),
        ([Clause(0, "a", final=True), Clause(1, "b")], "wrong_item"),
        ([Clause(0, "a" * (CLAUSE_CHARS_MAX + 1))], "input_overrun"),
        ([Clause(number, "a") for number in range(CLAUSES_WAITING_MAX + 1)], "input_overrun"),
    ],
)
def test_wrong_input_fails_this_stream(items: list[Clause], code: str) -> None:
    stream = _stream()
    with pytest.raises(StageFailure) as caught:
        drive(stream, items, eager=False)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "options",
    [
        VocoderOptions(),
        TalkerOptions(voice="ann"),
        TalkerOptions(speed=0.24),
        TalkerOptions(speed=1.51),
        TalkerOptions(speed=float("nan")),
        TalkerOptions(seed=-1),
    ],
)
def test_options_that_cannot_be_served_are_refused(options: Options) -> None:
    model = _model(fake_acoustics(FakeAcousticSession()))
    with pytest.raises(StageFailure) as caught:
        model.open(TAG, options)
    assert caught.value.code == "wrong_options"


@pytest.mark.parametrize("options", [TalkerOptions(), TalkerOptions(voice="joe", speed=0.25), TalkerOptions(speed=1.5)])
def test_the_model_opens_streams(options: Options) -> None:
    model = _model(fake_acoustics(FakeAcousticSession()))
    model.open_session("s")
    assert model.concurrency == 1
    assert latents_of(drive(model.open(TAG, options), clauses("hi.")))[-1].final
    assert model.kept_for("s") == {}
    model.close_session("s")
    model.close()


def test_each_response_has_the_voice_that_it_asks_for() -> None:
    halves = {"joe.onnx": FakeAcousticSession(), "amy.onnx": FakeAcousticSession()}
    model = TalkerModel([Path(name) for name in halves], Path(), lambda voice, _: fake_acoustics(halves[voice.name]))
    for voice, spoke in (("", [1, 0]), ("amy", [1, 1]), ("joe", [2, 1])):
        drive(model.open(TAG, TalkerOptions(voice=voice)), clauses("hi."))
        assert [len(session.feeds) for session in halves.values()] == spoke


def test_noise_depends_on_seed_clause_and_phrase_alone() -> None:
    def noises(seed: int) -> list[bytes]:
        session = FakeAcousticSession()
        stream = TalkerStream(fake_acoustics(session), TalkerOptions(seed=seed))
        drive(stream, clauses("abcdefgh " * 12, "a."))
        return [feed["latent_noise"].tobytes()[:64] for feed in session.feeds]

    assert noises(1) == noises(1)
    assert len({*noises(1), *noises(2)}) == 6


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.text(alphabet="ab .,!é\N{GRINNING FACE}", max_size=30), min_size=1, max_size=4),
    st.integers(0, 3),
    st.booleans(),
)
def test_words_are_ordered_and_inside_the_sound(texts: list[str], stretch: int, eager: bool) -> None:
    lasts: Callable[[str, int], int] = lambda symbol, place: 1 + (place * stretch) % 5 * 40  # noqa: E731
    stream = _stream(FakeAcousticSession(lasts))
    outputs = drive(stream, clauses(*texts), eager=eager)
    words = [word for event in word_times_of(outputs) for word in event.words]
    assert [word.text for word in words] == " ".join(texts).split()
    places = [place for word in words for place in (word.start, word.end)]
    assert places == sorted(places)
    frames = frames_of(latents_of(outputs))
    assert not places or places[-1] <= len(frames) * HOP
    assert frames.shape[1] == CHANNELS
    assert consumed_of(outputs) == [max(1, len(text)) for text in texts]
    assert stream.finished


# ---- the real voice ---------------------------------------------------------------------------------------

SENTENCES = (
    "Yes, sure.",
    "What is your name?",
    "I can certainly help you with that,",
    "We close at 10:30 pm tonight.",
    "It costs $45.50 \N{EM DASH} or 12% off \N{GRINNING FACE}",
)


def _real(*texts: str, options: TalkerOptions | None = None) -> tuple[list[WordTimes], list[Latents]]:
    stream = TalkerStream(real_acoustics(), options or TalkerOptions())
    outputs = drive(stream, clauses(*texts))
    return word_times_of(outputs), latents_of(outputs)


def _bytes(items: list[Latents]) -> bytes:
    return b"".join(item.data for item in items)


@pytest.mark.models
@pytest.mark.slow
def test_the_real_voice_times_every_word() -> None:
    times, items = _real(*SENTENCES)
    words = [word for event in times for word in event.words]
    assert [word.text for word in words] == " ".join(SENTENCES).split()
    places = [place for word in words for place in (word.start, word.end)]
    assert places == sorted(places)
    assert places[-1] <= sum(item.frames for item in items) * real_acoustics().hop
    assert all(len(item.data) <= ITEM_BYTES_MAX for item in items)


@pytest.mark.models
@pytest.mark.slow
def test_the_real_voice_repeats_itself_for_one_seed_only() -> None:
    text = "I can certainly help you with that."
    first, again, other = (_bytes(_real(text, options=TalkerOptions(seed=seed))[1]) for seed in (5, 5, 6))
    assert first == again
    assert first != other


@pytest.mark.models
@pytest.mark.slow
def test_the_real_voice_changes_speed() -> None:
    def frames(speed: float) -> int:
        _, items = _real("The store is open every day of the week", options=TalkerOptions(speed=speed))
        return sum(item.frames for item in items)

    slow, natural, fast = frames(0.5), frames(1.0), frames(1.5)
    assert 1.7 < slow / natural < 2.3
    assert 1.3 < natural / fast < 1.7


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["Yes, sure.", "We close at ten.", "Can you repeat that?", "Hello there!", "Please hold on:"]
)
def test_the_real_voice_starts_and_ends_without_delay(text: str) -> None:
    decoder = real_decoder()
    for seed in range(3):
        _, items = _real(text, options=TalkerOptions(seed=seed))
        latents = np.frombuffer(_bytes(items), dtype=np.float32).reshape(-1, decoder.channels)
        loud = np.nonzero(np.abs(decoder.decode(latents)) > 0.01)[0]
        assert loud[0] * 1000 / decoder.sample_rate <= 40
        assert (len(latents) * decoder.hop - loud[-1]) * 1000 / decoder.sample_rate <= 250
