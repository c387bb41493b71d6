"""Large payloads between real workers that are stopped and killed: all comes whole, and nothing is left behind."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import msgspec
import pytest

from stages.contracts import Clause, Tag, TalkerOptions, TextDelta, VocoderOptions
from stages.edges import OutEdge
from stages.messages import (
    Closed,
    Feed,
    OnwardChanged,
    Open,
    Opened,
    OpenSession,
    Published,
    SessionOpened,
    StepDone,
)
from stages.worker import WorkerSpec
from tests.stages.bulk_worker import digest, piece
from tests.stages.link_bench import play
from tests.stages.test_worker_live import WorkerProcess, workers

pytestmark = [pytest.mark.live, pytest.mark.slow]

MODULE = "tests.stages.bulk_worker"
WINDOW = 64
SESSION_BLOCKS = 8
SHARED_MEMORY = Path("/dev/shm")


def specs(folder: Path) -> tuple[WorkerSpec, WorkerSpec]:
    speak, sound = (f"unix:{folder}/{name}.sock" for name in ("speak", "sound"))
    return (
        WorkerSpec("speak", "talker", "bulk", speak, 1, edges=(OutEdge("sound", "latents", WINDOW, {"sound": sound}),)),
        WorkerSpec("sound", "vocoder", "bulk", sound, 1),
    )


def maps_an_arena(one: WorkerProcess) -> bool:
    return "memfd:arena-speak" in Path(f"/proc/{one.process.pid}/maps").read_text()


def left_behind(*ended: WorkerProcess) -> list[str]:
    """Files of the arenas, or of the processes, that have ended."""
    marks = {"arena", *(str(one.process.pid) for one in ended)}
    return [file.name for file in SHARED_MEMORY.iterdir() if any(mark in file.name for mark in marks)]


def names_in_shared_memory(one: WorkerProcess) -> list[str]:
    """Files there that the process has mapped or opened, and would leave behind if it were killed now."""
    place = Path(f"/proc/{one.process.pid}")
    held = [
        *place.joinpath("maps").read_text().splitlines(),
        *(str(fd.readlink()) for fd in place.joinpath("fd").iterdir()),
    ]
    return [name for name in held if str(SHARED_MEMORY) in name]


async def open_both(tag: Tag, speak: WorkerProcess, sound: WorkerProcess) -> None:
    for one, options in ((sound, VocoderOptions()), (speak, TalkerOptions())):
        one.order(OpenSession(tag.session, tag.epoch), Open(tag, options, ("sound",) if one is speak else ()))
        await one.told(SessionOpened)
        await one.told(Opened)


def ask(speak: WorkerProcess, tag: Tag, pieces: int) -> None:
    speak.media.link.send(Feed(tag, Clause(pieces, "")))


async def hear(sound: WorkerProcess, tag: Tag, pieces: int, first: int = 0) -> None:
    for number in range(first, pieces):
        assert await sound.media.frame() == Published(tag, TextDelta(digest(piece(tag, number))))


def test_a_reader_that_is_stopped_holds_its_producer_up_and_misses_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with workers(*specs(tmp_path), module=MODULE) as (speak, sound):
            tag = Tag("sess_1", 1, 1, "resp_1")
            await open_both(tag, speak, sound)
            assert maps_an_arena(speak)
            assert maps_an_arena(sound)
            sound.process.send_signal(signal.SIGSTOP)
            ask(speak, tag, 3 * SESSION_BLOCKS)
            # What the arena lends to one session is out, one piece waits for a block, and one more was begun.
            for _ in range(SESSION_BLOCKS + 2):
                assert isinstance(await speak.control.frame(), StepDone)
            speak.order(OpenSession("probe", 1))
            assert await speak.control.frame() == SessionOpened("probe")
            sound.process.send_signal(signal.SIGCONT)
            await hear(sound, tag, 3 * SESSION_BLOCKS)
            assert names_in_shared_memory(speak) == names_in_shared_memory(sound) == []

    play(scenario())


def test_a_killed_reader_gives_back_all_that_was_lent_to_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        speak_spec, sound_spec = specs(tmp_path)
        async with workers(speak_spec, sound_spec, module=MODULE) as (speak, sound):
            tag = Tag("sess_1", 1, 1, "resp_1")
            await open_both(tag, speak, sound)
            sound.process.send_signal(signal.SIGSTOP)
            ask(speak, tag, 3 * SESSION_BLOCKS)
            for _ in range(SESSION_BLOCKS + 2):
                assert isinstance(await speak.control.frame(), StepDone)
            sound.process.kill()
            await sound.ended()
            assert left_behind(sound) == []
            assert await speak.told(OnwardChanged) == OnwardChanged("sound", up=False)
            closed = await speak.told(Closed)
            assert (closed.tag, closed.outcome, closed.code) == (tag, "failed", "downstream_lost")

            async with workers(msgspec.structs.replace(sound_spec, incarnation=2), module=MODULE) as (reborn,):
                assert await speak.told(OnwardChanged) == OnwardChanged("sound", up=True)
                again = Tag("sess_1", 1, 1, "resp_2")
                await open_both(again, speak, reborn)
                ask(speak, again, 2 * SESSION_BLOCKS)
                await hear(reborn, again, 2 * SESSION_BLOCKS)

    play(scenario())


def test_a_killed_producer_leaves_no_memory_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with workers(*specs(tmp_path), module=MODULE) as (speak, sound):
            tag = Tag("sess_1", 1, 1, "resp_1")
            await open_both(tag, speak, sound)
            ask(speak, tag, 3 * SESSION_BLOCKS)
            await hear(sound, tag, 2)
            assert names_in_shared_memory(speak) == []
            speak.process.kill()
            await speak.ended()
            assert left_behind(speak) == []
            async with asyncio.timeout(10):
                while maps_an_arena(sound):
                    await sound.settle()

    play(scenario())
