"""The four stages as real processes on real links: the same reply, sample by sample, uncut and cut off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stages.contracts import (
    AudioIn,
    AudioOut,
    EncoderOptions,
    EndOfTurn,
    Message,
    Options,
    PrefillOptions,
    Prompt,
    Tag,
    TalkerOptions,
    TextDone,
    ThinkerOptions,
    Transcript,
    VocoderOptions,
)
from stages.graph import worker_spec
from stages.messages import Cancel, Feed, Frame, Grant, Open, Opened, OpenSession, Published, SessionOpened
from tests.stages.engines.torch_omni.offline import Offline, generate
from tests.stages.engines.torch_omni.pipeline import omni_graph
from tests.stages.link_bench import play
from tests.stages.test_worker_live import WorkerProcess, workers

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(300)]

START_S_MAX = 60  # four processes import torch on a machine that may be busy
TOKENS_MAX = 10
FRAMES_MAX = 30
TOLERANCE = 2e-5  # as in test_offline

SESSION = "sess_1"
MESSAGES = (Message("system", "Be kind."), Message("user", "", audio_turn=1))
PCM = (np.random.default_rng(3).normal(size=50_000) * 2_000).astype(np.int16)
PIECE = 1_600
ONWARD = {"hear": ("think",), "think": ("speak",), "speak": ("sound",), "sound": ()}


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[list[WorkerProcess]]:
    wanted = omni_graph(frames_max=FRAMES_MAX)
    specs = [worker_spec(wanted, stage, stage.name, folder, 1) for stage in wanted.stages]
    async with workers(*specs, start_s_max=START_S_MAX) as stages:
        for one in stages:
            one.order(OpenSession(SESSION, 1))
            await one.told(SessionOpened)
        yield stages


async def open_at(one: WorkerProcess, tag: Tag, options: Options, *, onward: bool) -> None:
    one.order(Open(tag, options, ONWARD[one.spec.replica] if onward else ()))
    await one.told(Opened)


async def hear(encoder: WorkerProcess, thinker: WorkerProcess) -> None:
    tag = Tag(SESSION, 1, 1)
    await open_at(thinker, tag, PrefillOptions(), onward=False)
    await open_at(encoder, tag, EncoderOptions(), onward=True)
    thinker.media.link.send(Feed(tag, Prompt(MESSAGES)))
    for start in range(0, len(PCM), PIECE):
        piece = PCM[start : start + PIECE]
        encoder.media.link.send(Feed(tag, AudioIn(start, piece.tobytes()), len(piece)))
    encoder.media.link.send(Feed(tag, EndOfTurn(len(PCM))))
    heard = await encoder.published_until(lambda frame: isinstance(frame, Published))
    assert heard[-1] == Published(tag, Transcript("", len(PCM), settled=True, final=True))
    for one in (encoder, thinker):
        await one.published_whole(tag)


async def answer(stages: list[WorkerProcess], tag: Tag) -> None:
    thinker, talker, vocoder = stages
    await open_at(vocoder, tag, VocoderOptions(), onward=False)
    await open_at(talker, tag, TalkerOptions(), onward=True)
    await open_at(thinker, tag, ThinkerOptions(MESSAGES, TOKENS_MAX), onward=True)


async def listen(vocoder: WorkerProcess, tag: Tag, samples: int) -> NDArray[np.int16]:
    """Grant what has come until the reply is over, or `samples` have come."""
    pcm = b""
    while len(pcm) // 2 < samples:
        (frame,) = await vocoder.published_until(lambda _: True)
        chunk = audio_of(frame, tag)
        assert chunk.start_sample == len(pcm) // 2
        pcm += chunk.pcm
        vocoder.media.link.send(Grant(tag, len(chunk.pcm) // 2))
        if chunk.final:
            break
    return np.frombuffer(pcm, dtype="<i2")


def audio_of(frame: Frame, tag: Tag) -> AudioOut:
    assert isinstance(frame, Published)
    assert frame.tag == tag
    assert isinstance(frame.event, AudioOut)
    return frame.event


def close(sound: NDArray[np.int16], wave: NDArray[np.float32]) -> None:
    np.testing.assert_allclose(sound / 32_768, wave.clip(-1, 32_767 / 32_768), rtol=0, atol=TOLERANCE)


def test_a_spoken_turn_is_answered_by_four_processes_as_by_one_call_of_the_library(tiny: Any, tmp_path: Path) -> None:
    sound = (PCM / 32_768).astype(np.float32)
    truth: Offline = generate(tiny, MESSAGES, sounds={1: sound}, tokens_max=TOKENS_MAX, frames_max=FRAMES_MAX)

    async def scenario() -> None:
        async with started(tmp_path) as (encoder, thinker, talker, vocoder):
            tag = Tag(SESSION, 1, 1, "resp_1")
            await hear(encoder, thinker)
            await answer([thinker, talker, vocoder], tag)
            close(await listen(vocoder, tag, len(truth.wave) + 1), truth.wave)
            said, *_ = [await one.published_whole(tag) for one in (thinker, talker, vocoder)]
            assert isinstance(said[-1], Published)
            assert isinstance(said[-1].event, TextDone)
            assert said[-1].event.text == "".join(f"<{token}>" for token in truth.tokens)

            # Another reply to the same turn, cut off when a few chunks of it have been heard.
            other = Tag(SESSION, 1, 1, "resp_2")
            await answer([thinker, talker, vocoder], other)
            heard = await listen(vocoder, other, 10_000)
            for one in (thinker, talker, vocoder):
                one.order(Cancel(other))
            for one in (thinker, talker, vocoder):
                closed = await one.next_end()
                assert closed.tag == other
                assert closed.outcome in ("cancelled", "finished")
            await vocoder.settle()
            rest = b"".join(audio_of(frame, other).pcm for frame in vocoder.events)
            heard = np.concatenate((heard, np.frombuffer(rest, dtype="<i2")))
            assert 10_000 <= len(heard) < len(truth.wave)
            close(heard, truth.wave[: len(heard)])
            for one in (encoder, thinker, talker, vocoder):
                assert await one.end() == (0, "")

    play(scenario())
    assert not list(tmp_path.glob("*.sock"))
