"""Our peer and an aiortc of a caller, in one process over the loopback address."""

from __future__ import annotations

import asyncio
import itertools
import json
import struct
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiortc import RTCDataChannel, RTCSessionDescription, rtcrtpreceiver
from aiortc.rtp import RtcpReceiverInfo, RtcpRrPacket, RtpPacket

from duplex.realtime.connection import SocketClosedError
from duplex.webrtc import aiortc_peer
from duplex.webrtc.aiortc_peer import FOREIGN_PACKETS_MAX, MESSAGES_WAITING_MAX, SEND_BUFFER_BYTES_MAX, AiortcPeer
from duplex.webrtc.loopback import offer_loopback
from duplex.webrtc.offer import checked_offer
from duplex.webrtc.opus import OpusEncoder
from duplex.webrtc.rtp import PACKET_TICKS, SENDING_PACKETS_MAX, OfferError, ReceivedPacket, SentPacket
from tests.live.census import resident_bytes
from tests.live.rtc_caller import RtcCaller

pytestmark = [pytest.mark.live, pytest.mark.slow]

WAIT_S_MAX = 20
SENT_PACKETS = 2_000
LEAKED_BYTES_MAX = 64  # of each packet; PyAV has lost 146


class Pair:
    def __init__(self) -> None:
        offer_loopback()
        self.received: list[ReceivedPacket] = []
        self.has_come = asyncio.Event()
        self.peer = AiortcPeer(self.receive)
        self.caller = RtcCaller()

    def receive(self, packet: ReceivedPacket) -> None:
        self.received.append(packet)
        self.has_come.set()

    async def connect(self) -> None:
        offer = checked_offer((await self.caller.offer()).encode())
        answer = await self.peer.answer(offer)
        await self.caller.peer.setRemoteDescription(RTCSessionDescription(answer, "answer"))
        async with asyncio.timeout(WAIT_S_MAX):
            await self.peer.until_open()
            await self.caller.opened.wait()

    async def close(self) -> None:
        await self.peer.close()
        await self.caller.close()

    def serve_silence(self) -> asyncio.Task[None]:
        """Write packets where there is room, whenever one comes from the caller, whose microphone has a clock."""

        async def put() -> None:
            encoder, tick = OpusEncoder(), 0
            while True:
                while self.peer.is_sending and self.peer.waiting < SENDING_PACKETS_MAX:
                    self.peer.put(SentPacket(tick, encoder.silence()))
                    tick += PACKET_TICKS
                self.has_come.clear()
                await self.has_come.wait()

        return asyncio.create_task(put())


@asynccontextmanager
async def connected() -> AsyncIterator[Pair]:
    pair = Pair()
    try:
        await pair.connect()
        yield pair
    finally:
        await pair.close()


def test_messages_and_packets_go_both_ways() -> None:
    async def run() -> None:
        async with connected() as pair, asyncio.timeout(WAIT_S_MAX):
            pair.caller.channel.send("to the service")
            assert await pair.peer.receive() == "to the service"
            await pair.peer.send(json.dumps({"type": "to the caller"}))
            await pair.caller.until("to the caller")
            serving = pair.serve_silence()
            await pair.caller.hear_frames(50)
            serving.cancel()
            frames = pair.caller.heard
            assert {after.pts - before.pts for before, after in itertools.pairwise(frames)} == {960}
            assert pair.peer.timestamp_origin is not None
            assert len(pair.received) > 1
            first, second = pair.received[:2]
            assert (second.timestamp - first.timestamp) % (1 << 32) == PACKET_TICKS
            assert (second.sequence - first.sequence) % (1 << 16) == 1

    asyncio.run(run())


def test_what_is_taken_back_is_not_sent() -> None:
    async def run() -> None:
        async with connected() as pair:
            packets = [SentPacket(number * PACKET_TICKS, OpusEncoder().silence()) for number in range(3)]
            for packet in packets:
                pair.peer.put(packet)
            assert pair.peer.waiting == 3
            assert pair.peer.take_back() == packets
            assert pair.peer.waiting == 0

    asyncio.run(run())


def test_a_caller_who_reads_slowly_makes_us_wait_and_gets_everything_in_order() -> None:
    async def run() -> None:
        async with connected() as pair, asyncio.timeout(WAIT_S_MAX):
            for number in range(30):
                await pair.peer.send(json.dumps({"type": str(number), "much": "x" * 20_000}))
                channel = pair.peer._channel
                assert channel is not None
                assert channel.bufferedAmount < SEND_BUFFER_BYTES_MAX + 21_000
            await pair.caller.until("29")
            assert [event["type"] for event in pair.caller.events] == [str(number) for number in range(30)]

    asyncio.run(run())


def test_a_message_larger_than_the_caller_takes_ends_the_connection() -> None:
    async def run() -> None:
        async with connected() as pair:
            with pytest.raises(SocketClosedError):
                await pair.peer.send("x" * 300_000)

    asyncio.run(run())


def test_the_origin_of_timestamps_is_the_one_on_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    take = rtcrtpreceiver.RTCRtpReceiver._handle_rtp_packet

    async def look(self: rtcrtpreceiver.RTCRtpReceiver, packet: RtpPacket, arrival_time_ms: int) -> None:
        seen.append(packet.timestamp)
        await take(self, packet, arrival_time_ms)

    async def run() -> None:
        pair = Pair()  # its receiver's handler was taken before it is watched: only the caller's is
        monkeypatch.setattr(rtcrtpreceiver.RTCRtpReceiver, "_handle_rtp_packet", look)
        try:
            (receiver,) = [one.receiver for one in pair.caller.peer.getTransceivers()]
            await pair.connect()
            serving = pair.serve_silence()
            async with asyncio.timeout(WAIT_S_MAX):
                await pair.caller.hear_frames(5)
            serving.cancel()
            assert receiver.track is not None
            assert pair.peer.timestamp_origin in seen
        finally:
            await pair.close()

    asyncio.run(run())


def test_what_the_caller_has_received_is_known_by_its_reports() -> None:
    async def run() -> None:
        async with connected() as pair, asyncio.timeout(WAIT_S_MAX):
            serving = pair.serve_silence()
            while pair.peer.report is None or pair.peer.report.round_trip_ns is None:
                await pair.caller.hear_frames(1)
            serving.cancel()
            report, sent = pair.peer.report, pair.peer._outgoing._last_tick
            assert sent is not None
            assert 0 < report.tick <= sent
            assert report.tick % PACKET_TICKS == 0
            assert report.round_trip_ns is not None
            assert report.jitter_ns < 1_000_000_000
            assert pair.peer.last_packet_ns == pair.received[-1].arrival_ns

    asyncio.run(run())


def test_reports_are_of_the_packet_that_they_name_and_of_ours() -> None:
    async def run() -> None:
        async with connected() as pair, asyncio.timeout(WAIT_S_MAX):
            serving = pair.serve_silence()
            await pair.caller.hear_frames(20)
            serving.cancel()
            sender = pair.peer._outgoing.sender
            assert sender is not None
            private: Any = sender
            sent = sorted(private._RTCRtpSender__rtp_history.values(), key=lambda packet: int(packet.timestamp))
            assert pair.peer.timestamp_origin is not None

            async def report(ssrc: int, sequence: int) -> int | None:
                pair.peer._outgoing.report = None
                info = RtcpReceiverInfo(ssrc, 0, 0, (3 << 16) + sequence, 96, 0, 0)
                await private._handle_rtcp_packet(RtcpRrPacket(ssrc=1, reports=[info]))
                got = pair.peer.report
                assert got is None or got.jitter_ns == 2_000_000
                return None if got is None else got.tick

            for packet in sent[:5]:
                tick = (packet.timestamp - pair.peer.timestamp_origin) % (1 << 32)
                assert await report(sender._ssrc, packet.sequence_number) == tick
            oldest = sent[0].sequence_number
            assert await report(sender._ssrc ^ 1, oldest) is None, "another's"
            assert await report(sender._ssrc, (oldest - 1) % (1 << 16)) is None, "not remembered"

    asyncio.run(run())


def test_nothing_of_a_pair_is_left() -> None:
    async def run() -> None:
        tasks, threads, files = census()
        for _ in range(5):
            async with connected() as pair:
                serving = pair.serve_silence()
                async with asyncio.timeout(WAIT_S_MAX):
                    await pair.caller.hear_frames(3)
                serving.cancel()
        await asyncio.sleep(0)
        # What another test had left to end by itself may have ended meanwhile.
        assert all(now <= then for now, then in zip(census(), (tasks, threads, files), strict=True))

    def census() -> tuple[int, int, int]:
        return len(asyncio.all_tasks()), threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    async def warm() -> None:
        async with connected():
            pass
        await run()

    asyncio.run(warm())


def test_aiortc_701_packets_that_were_sent_leave_no_memory_behind() -> None:
    async def run() -> None:
        async with connected() as pair, asyncio.timeout(WAIT_S_MAX):
            packet, tick = OpusEncoder().silence(), 0

            async def send() -> int:
                """As many as a round has; gives what is held after them."""
                nonlocal tick
                last = tick + SENT_PACKETS * PACKET_TICKS
                while tick < last:
                    while pair.peer.waiting < SENDING_PACKETS_MAX:
                        pair.peer.put(SentPacket(tick, packet))
                        tick += PACKET_TICKS
                    await asyncio.sleep(0)
                pair.caller.forget()
                return resident_bytes()

            held = [await send() for _ in range(5)]
            kept = min(after - before for before, after in itertools.pairwise(held))
            assert kept < SENT_PACKETS * LEAKED_BYTES_MAX, "a leak is in every round"

    asyncio.run(run())


def test_who_reads_learns_that_the_caller_is_gone() -> None:
    async def run() -> None:
        async with connected() as pair, asyncio.timeout(WAIT_S_MAX):
            reading = asyncio.create_task(pair.peer.receive())
            await pair.caller.close()
            with pytest.raises(SocketClosedError):
                await reading
            with pytest.raises(SocketClosedError):
                await pair.peer.send("too late")
            assert pair.peer.over.is_set()
            assert not pair.peer.is_sending

    asyncio.run(run())


def test_a_second_channel_and_one_of_another_name_are_closed() -> None:
    async def run() -> None:
        async with connected() as pair, asyncio.timeout(WAIT_S_MAX):
            others = [pair.caller.peer.createDataChannel(name) for name in ("oai-events", "chat")]
            for other in others:
                await until_closed(other)
            pair.caller.channel.send("still here")
            assert await pair.peer.receive() == "still here"

    async def until_closed(channel: RTCDataChannel) -> None:
        closed = asyncio.Event()
        channel.on("close", closed.set)
        if channel.readyState != "closed":
            await closed.wait()

    asyncio.run(run())


def test_a_flood_of_messages_ends_the_connection() -> None:
    async def run() -> None:
        async with connected() as pair, asyncio.timeout(WAIT_S_MAX):
            for _ in range(MESSAGES_WAITING_MAX + 1):
                pair.caller.channel.send("x")
            await pair.peer.over.wait()
            assert pair.peer.fault == "too_many_messages"
            await pair.peer.send('{"type": "too much"}')
            await pair.caller.until("too much")

    asyncio.run(run())


def test_the_sound_of_others_is_not_taken_and_too_much_of_it_ends_the_connection() -> None:
    async def run() -> None:
        pair = Pair()
        await pair.peer.answer(checked_offer((await pair.caller.offer()).encode()))
        (transceiver,) = pair.peer._connection.getTransceivers()
        handle = transceiver.receiver._handle_rtp_packet
        for number in range(FOREIGN_PACKETS_MAX + 2):
            packet = RtpPacket(payload_type=96, sequence_number=number, timestamp=0)
            packet.ssrc = 1 + number
            assert not pair.peer.over.is_set()
            await handle(packet, 0)
        assert pair.peer.over.is_set()
        assert pair.peer.fault == "too_many_sources"
        assert pair.received == []
        await pair.close()

    asyncio.run(run())


@pytest.mark.parametrize("spoil", ["a=rtpmap:", "a=sctp-port:", "a=fingerprint:"])
def test_an_offer_that_only_aiortc_sees_through_is_refused(spoil: str) -> None:
    async def run() -> None:
        pair = Pair()
        lines = (await pair.caller.offer()).splitlines()
        spoilt = [line + " x/y/z" if line.startswith(spoil) else line for line in lines]
        with pytest.raises(OfferError) as raised:
            await pair.peer.answer("\r\n".join(spoilt) + "\r\n")
        assert raised.value.code == "invalid_sdp"
        await pair.close()

    asyncio.run(run())


def test_timestamps_that_jump_do_not_burst_the_report() -> None:
    statistics = rtcrtpreceiver.StreamStatistics(48_000)
    for number in range(400):
        packet = RtpPacket(sequence_number=number, timestamp=(number % 2) * ((1 << 32) - 1))
        statistics.add(packet)
    assert statistics.jitter > 1 << 31
    statistics._jitter_q4 = 1 << 40
    info = RtcpReceiverInfo(
        ssrc=1, fraction_lost=0, packets_lost=0, highest_sequence=1, jitter=statistics.jitter, lsr=0, dlsr=0
    )
    assert struct.unpack("!L", bytes(info)[12:16]) == ((1 << 32) - 1,)


def test_a_close_that_hangs_is_bounded_and_frees_threads_and_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiortc_peer, "CLOSE_S_MAX", 0.1)

    async def run() -> None:
        async with connected() as pair:
            serving = pair.serve_silence()
            async with asyncio.timeout(WAIT_S_MAX):
                await pair.caller.hear_frames(2)
            serving.cancel()
            (transceiver,) = pair.peer._connection.getTransceivers()
            monkeypatch.setattr(transceiver.receiver, "stop", asyncio.Event().wait)
            decoders = [thread for thread in threading.enumerate() if thread.name == "audio-decoder"]
            assert len(decoders) == 2
            await pair.peer.close()
        for thread in decoders:
            thread.join(WAIT_S_MAX)
            assert not thread.is_alive()

    asyncio.run(run())
