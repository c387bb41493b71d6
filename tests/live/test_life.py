"""Starts that cannot be, and ends of all kinds: each says what is the matter, and nothing is left running."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from pathlib import Path

import pytest

from tests.live.caller import calling
from tests.live.service import Service, descendants, open_processes, serving, sockets_in, wait_for_ends

pytestmark = [pytest.mark.live, pytest.mark.slow]

TALK = {"scripted_replies": " ".join(f"word{number}" for number in range(120)), "max_output_tokens": "200"}


def failed_start(data_dir: Path, settings: dict[str, str], *, port: int = 0) -> tuple[int, str]:
    """The exit status of a service that does not come up, and what it said."""
    service = Service(data_dir, settings, port=port)
    try:
        status = service.wait()
    finally:
        service.abandon()
    assert sockets_in(data_dir) == []
    return status, "\n".join(service.lines)


def test_calls_are_told_of_an_orderly_end(tmp_path: Path) -> None:
    with serving(tmp_path, TALK) as service, calling(service) as silent, calling(service) as talking:
        talking.type_text("Tell me everything.")
        talking.send("response.create")
        talking.until("response.output_audio.delta")
        service.stop()
        assert silent.until_closed() == (1001, "service_shutdown")
        assert talking.until_closed() == (1001, "service_shutdown")
        done = talking.of_type("response.done")
    assert [event["response"]["status"] for event in done] == ["cancelled"]
    reasons = [json.loads(line)["reason"] for line in service.lines if '"event": "call_ended"' in line]
    assert reasons == ["service_shutdown"] * 2


def test_an_end_asked_for_twice_is_one_end(tmp_path: Path) -> None:
    with serving(tmp_path, {}) as service:
        service.stop(times=2)


def test_an_end_asked_for_during_the_start_is_obeyed(tmp_path: Path) -> None:
    service = Service(tmp_path, {})
    try:
        service.wait_for_line(lambda line: "embedded Valkey" in line)
        service.stop()
    finally:
        service.abandon()
    assert not [line for line in service.lines if line.startswith("Ready:")]


def test_what_was_written_is_there_after_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path, {}) as service, calling(service) as caller:
        caller.type_text("Remember herons.")
        caller.settle()
        token = caller.events[0]["session"]["resume_token"]
        service.stop()
    with serving(tmp_path, {}) as service, calling(service) as caller:
        caller.send("session.resume", token=token)
        items = caller.until("session.resumed")["items"]
    assert [item["content"][0]["text"] for item in items] == ["Remember herons."]


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        status, said = failed_start(tmp_path, {}, port=port)
    assert status == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in said
    assert "Traceback" not in said


def test_two_services_on_one_data_directory_do_not_disturb_each_other(tmp_path: Path) -> None:
    with serving(tmp_path, {}) as service:
        before = sockets_in(tmp_path)
        second = Service(tmp_path, {})
        try:
            status = second.wait()
        finally:
            second.abandon()
        said = "\n".join(second.lines)
        assert status == 1
        assert f"another service runs on {tmp_path}" in said
        assert "DUPLEX_DATA_DIR" in said
        assert sockets_in(tmp_path) == before
        with calling(service) as caller:
            caller.send("response.create", response={"output_modalities": ["text"]})
            assert caller.until("response.done")["response"]["status"] == "completed"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"host": "0.0.0.0"}, "set token"),
        ({"host": "0.0.0.0", "token": ""}, "token"),
        ({"calls_max": "many"}, "calls_max"),
        ({"redis_url": "unix:///nowhere/redis.sock"}, "the store (DUPLEX_REDIS_URL) cannot be used"),
        ({"redis_url": "nowhere"}, "redis_url"),
        ({"config": "/nowhere/duplex.toml"}, "/nowhere/duplex.toml"),
    ],
)
def test_a_configuration_that_cannot_be_is_fatal_and_named(
    tmp_path: Path, settings: dict[str, str], named: str
) -> None:
    status, said = failed_start(tmp_path, settings)
    assert status in {1, 2}
    assert named in said
    assert "Traceback" not in said


def test_a_data_directory_too_deep_for_sockets_is_named(tmp_path: Path) -> None:
    status, said = failed_start(tmp_path / ("d" * 100), {})
    assert status == 2
    assert "DUPLEX_DATA_DIR" in said or "shorter data directory" in said


def test_nothing_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    with serving(tmp_path, {}) as service, calling(service) as caller:
        with open_processes(descendants(service.process.pid)) as processes:
            assert len(processes) == 7
            service.process.kill()
            service.wait()
            wait_for_ends(processes)
        assert caller.until_closed() == (1001, "service_shutdown")
    with serving(tmp_path, {}) as service, calling(service):
        pass


def test_every_line_of_the_log_is_a_record(tmp_path: Path) -> None:
    with serving(tmp_path, {"log_level": "debug"}) as service:
        with calling(service) as caller:
            caller.send("response.create", response={"output_modalities": ["text"]})
            caller.until("response.done")
        service.wait_for_calls(0)
        began = next(at for at, line in enumerate(service.lines) if line.startswith("Stop:")) + 1
        service.stop()
    lines = [line for line in service.lines[began:] if not line.startswith("stopping:")]
    assert {"response_ended", "call_ended"} <= {json.loads(line)["event"] for line in lines}
