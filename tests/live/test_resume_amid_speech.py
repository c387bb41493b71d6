"""A gateway dies while its caller speaks a sentence: after the return it is understood whole, and once.

The synthetic encoder hears a word for each 300 ms of sound, so how many there are says how much was heard.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from loadtest.caller import Call, MonotonicClock
from loadtest.realtime_client import Target
from loadtest.timeline import CallPlan
from loadtest.turns import CallOutcome, Utterance
from tests.live.caller import BROKEN, Caller, Message, calling, silence, tone
from tests.live.rtc_caller import rtc_calling
from tests.live.service import Service, serving

pytestmark = [pytest.mark.live, pytest.mark.slow]

GATEWAYS = ("gateway-1", "gateway-2")
WORD_MS = 300
WORDS = 10
PROFILE = f"""
[encoder]
heard_word_ms = {WORD_MS}
[thinker]
reply_words = 2
"""
SENTENCE = tone(WORDS * WORD_MS)
HALF = len(SENTENCE) // 4 * 2
ITEM = "conversation.item.input_audio_transcription.completed"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("amid-speech")
    profile = folder / "profile.toml"
    profile.write_text(PROFILE)
    settings = {"synthetic_profile": str(profile), "gateways": "2"}
    with serving(folder / "data", settings, engine="synthetic") as running:
        yield running


def words_of(text: str) -> int:
    """Padding before the onset counts as sound."""
    return len(text.split())


class Killer:
    """Kills the gateway that has the call, and remembers to wait for the next one."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._since = len(service.lines)
        self._killed = ""

    def strike(self) -> None:
        service = self._service
        self._killed = next(name for name in GATEWAYS if service.alone(name).get("/readyz").json["calls"])
        os.kill(service.pid_of(self._killed), signal.SIGKILL)

    def wait(self) -> None:
        if self._killed:
            self._service.wait_for_event("child_restarted", since=self._since, child=self._killed)


@pytest.fixture
def killer(service: Service) -> Iterator[Killer]:
    for name in GATEWAYS:
        service.alone(name).wait_for_calls(0)
    one = Killer(service)
    yield one
    one.wait()


def said(items: list[Message]) -> list[str]:
    return [item["content"][0]["transcript"] for item in items if item["role"] == "user"]


def resume(caller: Caller, token: str) -> Message:
    caller.send("session.resume", token=token)
    return caller.until("session.resumed")


def converse(caller: Caller) -> str:
    """One turn that is over, so that there is something to stand behind."""
    caller.settle(audio={"input": {"transcription": {"model": "any"}}})
    caller.hear(silence(400) + tone(600) + silence(900))
    caller.until(ITEM)
    caller.until("response.drained")
    token: str = caller.events[0]["session"]["resume_token"]
    return token


def test_a_sentence_that_was_broken_off_is_heard_whole_and_once(service: Service, killer: Killer) -> None:
    with calling(service) as caller:
        token = converse(caller)
        caller.hear(silence(1_000) + SENTENCE[:HALF])
        caller.until("input_audio_buffer.speech_started")
        killer.strike()
        assert caller.until_closed() == BROKEN
    with calling(service) as back:
        resumed = resume(back, token)
        received = resumed["input_samples_received"]
        assert resumed["input_sample_rate"] == 24_000
        assert 24_000 < received <= caller.said_samples - HALF // 2, "at the first turn's end, or in the silence behind"
        back.hear_again(caller, received)
        back.hear(SENTENCE[HALF:] + silence(900))
        heard = back.until(ITEM)["transcript"]
        back.until("response.done")
    assert WORDS <= words_of(heard) <= WORDS + 2
    with calling(service) as third:
        assert len(said(resume(third, token)["items"])) == 2


def test_a_sentence_whose_words_were_awaited_is_there_once(service: Service, killer: Killer) -> None:
    """Its item was stored, empty, when it had ended; said again it makes another, and that one goes."""
    with calling(service) as caller:
        token = converse(caller)
        encoder = service.pid_of("encoder")
        os.kill(encoder, signal.SIGSTOP)
        try:
            caller.hear(silence(1_000) + SENTENCE + silence(900))
            committed = caller.until("input_audio_buffer.committed")["item_id"]
            caller.until("conversation.item.added")
            caller.settle()
            killer.strike()
            assert caller.until_closed() == BROKEN
        finally:
            os.kill(encoder, signal.SIGCONT)
    with calling(service) as back:
        resumed = resume(back, token)
        back.hear_again(caller, resumed["input_samples_received"])
        heard = back.until(ITEM)
        back.until("response.done")
    assert heard["item_id"] != committed
    assert WORDS <= words_of(heard["transcript"]) <= WORDS + 2
    with calling(service) as third:
        items = resume(third, token)["items"]
    assert committed not in [item["id"] for item in items]
    assert len(said(items)) == 2


def test_a_caller_who_comes_back_by_itself_is_understood(service: Service, killer: Killer) -> None:
    """`duplex call --return-for`, amid its only sentence."""

    progress: list[str] = []

    def note(line: str) -> None:
        progress.append(line)
        if line.endswith("saying sentence"):
            killer.strike()

    async def run() -> tuple[CallOutcome, str]:
        plan = CallPlan((Utterance.from_pcm("sentence", SENTENCE),), silence_ms=500, return_ms_max=20_000)
        call = Call(Target.parse(f"http://{service.address}"), plan, MonotonicClock(), note)
        await call.run()
        assert any(line.endswith("coming back") for line in progress), progress
        result = call.result()
        return result.outcome, result.turns[0].caller_text

    outcome, text = asyncio.run(run())
    assert outcome is CallOutcome.COMPLETED
    assert WORDS <= words_of(text) <= WORDS + 2


def test_a_browser_learns_where_its_input_stopped(service: Service) -> None:
    """Its track begins anew, so what was being said has to be said again; offsets go on all the same."""

    async def run() -> None:
        with calling(service) as caller:
            token = converse(caller)
        async with rtc_calling(service) as browser:
            browser.send("session.resume", token=token)
            resumed = await browser.until("session.resumed")
            assert resumed["input_samples_received"] > 0

    asyncio.run(run())
