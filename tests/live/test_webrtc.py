"""Calls of browsers through the real service: what is heard, how it stops, who is let in, and what is left."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.live.caller import Message
from tests.live.rtc_caller import SDP, RtcCaller, offer_of_nobody, post, rtc_calling, until_free
from tests.live.service import Answer, Service, serving

pytestmark = [pytest.mark.live, pytest.mark.slow]

HEARD, LONG = "good morning", "One two three four five six seven eight nine ten eleven twelve thirteen fourteen."
LINES = 4
SILENCE_S = 2
PACKET_TICKS = 960


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = {
        "scripted_heard": HEARD,
        "scripted_replies": LONG,
        "calls_max": str(LINES),
        "webrtc_silence_s": str(SILENCE_S),
    }
    with serving(tmp_path_factory.mktemp("webrtc"), settings) as running:
        yield running


def error_of(answer: Answer) -> dict[str, Any]:
    error: dict[str, Any] = answer.json["error"]
    return error


async def reply_to_speech(caller: RtcCaller) -> None:
    """Speak, and wait until the reply is heard."""
    await caller.hear_frames(10)
    await caller.say_something()
    await caller.until("output_audio_buffer.started")
    await caller.wait_for(caller.is_audible)


# ---- talking --------------------------------------------------------------------------------------


def test_what_is_said_is_answered_and_heard(service: Service) -> None:
    async def run() -> None:
        async with rtc_calling(service) as caller:
            await reply_to_speech(caller)
            await caller.until("response.drained")
            await caller.hear_frames(15)
            assert not caller.is_audible()
            types = [event["type"] for event in caller.events]
            assert types.index("output_audio_buffer.started") < types.index("response.done")
            assert types.index("response.done") < types.index("output_audio_buffer.stopped")
            assert "response.output_audio.delta" not in types
            assert [event["server_event_seq"] for event in caller.events] == list(range(1, len(types) + 1))
            transcript = await caller.until("conversation.item.input_audio_transcription.completed")
            assert transcript["transcript"] == HEARD
            assert_one_clock(caller)
        await until_free(service)

    asyncio.run(run())


def assert_one_clock(caller: RtcCaller) -> None:
    """Sound and silence came without a break."""
    assert {after.pts - before.pts for before, after in itertools.pairwise(caller.heard)} == {PACKET_TICKS}


def test_an_interruption_is_heard_within_a_frame_of_its_event(service: Service) -> None:
    async def run() -> None:
        async with rtc_calling(service) as caller:
            await reply_to_speech(caller)
            await caller.hear_frames(20)
            caller.microphone.talking = True
            cleared = await caller.until("output_audio_buffer.cleared")
            audible_at_event = len(caller.heard)
            await caller.hear_frames(20)
            caller.microphone.talking = False
            done = next(event for event in caller.events if event["type"] == "response.done")
            assert done["response"]["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
            assert cleared["response_id"] == done["response"]["id"]
            # aiortc's own jitter buffer holds four packets; beyond those, one frame may have been on its way.
            late = [frame for frame in caller.heard[audible_at_event + 5 :] if frame.rms > 0.02]
            assert late == []
            assert_one_clock(caller)
        await until_free(service)

    asyncio.run(run())


def test_typed_text_is_answered_aloud(service: Service) -> None:
    async def run() -> None:
        async with rtc_calling(service) as caller:
            await caller.ask("How far is it?")
            await caller.wait_for(caller.is_audible)
            caller.send("response.cancel")
            caller.send("output_audio_buffer.clear")
            await caller.until("output_audio_buffer.cleared")
            await caller.until("response.drained")
            assert [event for event in caller.events if event["type"] == "error"] == []
        await until_free(service)

    asyncio.run(run())


def test_reports_of_the_ear_are_taken_and_sound_in_messages_is_not(service: Service) -> None:
    async def run() -> None:
        async with rtc_calling(service) as caller:
            await caller.ask("How far is it?")
            await caller.wait_for(caller.is_audible)
            caller.send("playback.ack", rtp_timestamp=5, age_ms=3.5, output_latency_ms=30)
            caller.send("playback.ack", event_id="nothing")
            caller.send("input_audio_buffer.append", audio="AAAA", event_id="sound")
            caller.send("session.update", session={"instructions": "x" * 70_000}, event_id="large")
            caller.send("session.update", session={"instructions": "Be brief."})
            await caller.until("session.updated")
            errors = [event["error"] for event in caller.events if event["type"] == "error"]
            assert [(error["code"], error["event_id"]) for error in errors] == [
                ("invalid_value", "nothing"),
                ("unsupported_event", "sound"),
                ("message_too_large", None),
            ]
        await until_free(service)

    asyncio.run(run())


def test_a_track_that_is_paused_amid_speech_ends_the_turn(service: Service) -> None:
    async def run() -> None:
        async with rtc_calling(service) as caller:
            await caller.hear_frames(10)
            caller.microphone.talking = True
            started = await caller.until("input_audio_buffer.speech_started")
            caller.microphone.muted.set()
            stopped = await caller.until("input_audio_buffer.speech_stopped")
            committed = await caller.until("input_audio_buffer.committed")
            assert {stopped["item_id"], committed["item_id"]} == {started["item_id"]}

    asyncio.run(run())


# ---- coming and going -----------------------------------------------------------------------------


def test_a_gateway_that_stood_still_keeps_its_callers(service: Service) -> None:
    async def run() -> None:
        gateway = service.pid_of("gateway")
        async with rtc_calling(service) as caller:
            await caller.hear_frames(10)
            os.kill(gateway, signal.SIGSTOP)
            try:
                await asyncio.sleep(SILENCE_S + 1)
            finally:
                os.kill(gateway, signal.SIGCONT)
            await caller.ask("Are you there?")
            await caller.until("output_audio_buffer.started")
        await until_free(service)

    asyncio.run(run())


def test_a_page_that_vanishes_frees_its_place(service: Service) -> None:
    async def run() -> None:
        since = len(service.lines)
        async with rtc_calling(service) as caller:
            session = caller.events[0]["session"]["id"]
            await caller.hear_frames(10)
            caller.microphone.muted.set()
            ended = await asyncio.to_thread(service.wait_for_event, "call_ended", since=since, session=session)
            assert ended["reason"] == "vanished"
            await until_free(service)

    asyncio.run(run())


@pytest.mark.parametrize("how", ["bye", "hangup", "delete", "close"])
def test_a_page_that_says_goodbye_frees_its_place_at_once(service: Service, how: str) -> None:
    async def run() -> None:
        since = len(service.lines)
        async with rtc_calling(service) as caller:
            session = caller.events[0]["session"]["id"]
            await caller.hear_frames(3)
            if how == "bye":
                caller.send("bye")
            elif how == "hangup":
                assert (await post(service, f"{caller.location}/hangup", b"")).status == 200
            elif how == "delete":
                answer = await asyncio.to_thread(service.send, "DELETE", caller.location, None, {})
                assert answer.status == 200
            else:
                await caller.peer.close()
            ended = await asyncio.to_thread(service.wait_for_event, "call_ended", since=since, session=session)
            assert ended["reason"] == "client_closed"
            await until_free(service)
        gone = await post(service, f"{caller.location}/hangup", b"")
        assert (gone.status, error_of(gone)["code"]) == (404, "call_not_found")

    asyncio.run(run())


def test_a_page_that_comes_back_goes_on_with_its_session(service: Service) -> None:
    async def run() -> None:
        async with rtc_calling(service) as caller:
            created = caller.events[0]["session"]
            await caller.ask("How far is it?")
            await caller.until("response.done")
            async with rtc_calling(service) as again:
                again.send("session.resume", token=created["resume_token"])
                resumed = await again.until("session.resumed")
                assert resumed["session"]["id"] == created["id"]
                assert [item["role"] for item in resumed["items"]] == ["user", "assistant"]
                farewell = await caller.until("error")
                assert farewell["error"]["code"] == "session_replaced"
                await reply_to_speech(again)
                again.send("session.resume", token=created["resume_token"], event_id="late")
                late = await again.until("error")
                assert late["error"]["code"] == "resume_too_late"
        await until_free(service)

    asyncio.run(run())


def test_a_token_of_nobody_is_told_so(service: Service) -> None:
    async def run() -> None:
        async with rtc_calling(service) as caller:
            caller.send("session.resume", token="sess_none.none")
            error = await caller.until("error")
            assert error["error"]["code"] == "session_not_resumable"
            await until_free(service)

    asyncio.run(run())


# ---- the door -------------------------------------------------------------------------------------


# Whatever decoder a request names for it.
FORM = b'--y\r\nContent-Disposition: form-data; name="sdp"\r\n\r\n\\ud800\r\n--y--\r\n'


def test_what_is_no_offer_is_refused_by_name(service: Service) -> None:
    async def run() -> None:
        for body, headers, status, code in (
            (b"hello", SDP, 400, "invalid_sdp"),
            (b"v=0\r\n", SDP, 400, "unsupported_media"),
            (b"v=0\r\n" * 5_000, SDP, 413, "body_too_large"),
            (b"{}", {"Content-Type": "application/json"}, 415, "unsupported_content_type"),
            (b"--x", {"Content-Type": "multipart/form-data; boundary=y"}, 400, "invalid_form"),
            (b"", {"Content-Type": "multipart/form-data"}, 400, "invalid_form"),
            (FORM, {"Content-Type": "multipart/form-data; boundary=y; charset=unicode_escape"}, 400, "invalid_sdp"),
            (FORM, {"Content-Type": "multipart/form-data; boundary=y; charset=punycode"}, 400, "invalid_sdp"),
        ):
            answer = await post(service, "/v1/realtime/calls", body, **headers)
            error = error_of(answer)
            assert (answer.status, error["code"], error["type"]) == (status, code, "invalid_request_error")
        assert service.get("/readyz").json["calls"] == 0

    asyncio.run(run())


def form(**fields: str) -> tuple[bytes, dict[str, str]]:
    boundary = uuid.uuid4().hex
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    body = "".join([*parts, f"--{boundary}--\r\n"]).encode()
    return body, {"Content-Type": f"multipart/form-data; boundary={boundary}"}


def test_an_offer_may_come_with_its_session(service: Service) -> None:
    async def run() -> None:
        caller = RtcCaller()
        session = json.dumps({"type": "realtime", "instructions": "Be brief.", "extensions": True})
        body, headers = form(sdp=await caller.offer(), session=session)
        await caller.accept(await post(service, "/v1/realtime/calls?model=m", body, **headers))
        created: Message = (await caller.until("session.created"))["session"]
        assert (created["instructions"], created["model"]) == ("Be brief.", "m")
        assert created["resume_token"]
        await caller.close()
        for wrong, code in (
            ("{", "invalid_session"),
            ('{"temperature": 9}', "invalid_value"),
            ('{"audio": {"input": {"format": {"type": "audio/pcmu"}}}}', "unsupported_format"),
        ):
            body, headers = form(sdp=(await offer_of_nobody()).decode(), session=wrong)
            answer = await post(service, "/v1/realtime/calls", body, **headers)
            assert (answer.status, error_of(answer)["code"]) == (400, code)
        await until_free(service)

    asyncio.run(run())


def test_the_same_offer_again_is_another_call(service: Service) -> None:
    async def run() -> None:
        async with rtc_calling(service) as caller:
            offer = caller.peer.localDescription.sdp.encode()
            answer = await post(service, "/v1/realtime/calls", offer, **SDP)
            assert answer.status == 201
            assert answer.headers["location"] != caller.location
            await reply_to_speech(caller)
            assert (await post(service, f"{answer.headers['location']}/hangup", b"")).status == 200
            await until_free(service, calls=1)
        await until_free(service)

    asyncio.run(run())


def test_a_full_service_says_when_to_come_back(service: Service) -> None:
    async def run() -> None:
        async with rtc_calling(service) as one, rtc_calling(service), rtc_calling(service), rtc_calling(service):
            answer = await post(service, "/v1/realtime/calls", one.peer.localDescription.sdp.encode(), **SDP)
            error = error_of(answer)
            assert (answer.status, error["code"], error["type"]) == (503, "capacity_exceeded", "server_error")
            assert (answer.headers["retry-after"], error["retry_after_s"]) == ("15", 15)
        await until_free(service)

    asyncio.run(run())


def test_pages_of_elsewhere_may_neither_call_nor_hang_up(service: Service) -> None:
    async def run() -> None:
        async with rtc_calling(service) as caller:
            offer = caller.peer.localDescription.sdp.encode()
            for path, body in (("/v1/realtime/calls", offer), (f"{caller.location}/hangup", b"")):
                answer = await post(service, path, body, **SDP, Origin="https://evil.example")
                assert (answer.status, error_of(answer)["code"]) == (403, "origin_not_allowed")
            await caller.hear_frames(5)
        await until_free(service)

    asyncio.run(run())


def test_without_a_token_a_secret_still_brings_its_settings(service: Service) -> None:
    async def run() -> None:
        wanted = {"expires_after": {"anchor": "created_at", "seconds": 10}, "session": {"instructions": "Be kind."}}
        answer = await post(service, "/v1/realtime/client_secrets", json.dumps(wanted).encode())
        assert answer.status == 200
        assert answer.json["value"].startswith("ek_")
        assert answer.json["session"]["instructions"] == "Be kind."
        async with rtc_calling(service, Authorization=f"Bearer {answer.json['value']}") as caller:
            assert caller.events[0]["session"]["instructions"] == "Be kind."
        await until_free(service)

    asyncio.run(run())


def test_a_secret_for_a_telephone_is_none_for_a_track(service: Service) -> None:
    async def run() -> None:
        wanted = {"session": {"audio": {"output": {"format": {"type": "audio/pcma"}}}}}
        secret = await post(service, "/v1/realtime/client_secrets", json.dumps(wanted).encode())
        assert secret.status == 200
        bearer = {"Authorization": f"Bearer {secret.json['value']}"}
        answer = await post(service, "/v1/realtime/calls", await offer_of_nobody(), **SDP, **bearer)
        assert (answer.status, error_of(answer)["code"]) == (400, "unsupported_format")
        await until_free(service)

    asyncio.run(run())


@pytest.mark.parametrize(
    "wanted",
    [
        b"{",
        b'{"expires_after": {"seconds": 9}}',
        b'{"expires_after": {"seconds": 7201}}',
        b'{"session": {"temperature": 9}}',
    ],
)
def test_a_secret_that_cannot_be_is_refused(service: Service, wanted: bytes) -> None:
    answer = service.send("POST", "/v1/realtime/client_secrets", wanted, {})
    assert (answer.status, error_of(answer)["code"]) == (400, "invalid_value")
